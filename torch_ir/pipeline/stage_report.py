"""Report the weights, memory, time and traffic of each stage of a pipeline."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from torch_ir.analysis import Roofline, cost, liveness
from torch_ir.analysis.cost_model.node_costs import sized
from torch_ir.analysis.cost_model.table_rows import parameters
from torch_ir.analysis.cost_model.times import Clock
from torch_ir.analysis.cost_model.traffic import bytes_of
from torch_ir.analysis.shapes.size_polynomials import total
from torch_ir.ir import IR
from torch_ir.ir.graph.given_graph import require_graph
from torch_ir.ir.json.json_fields import Dim
from torch_ir.ir.regroup.functions import op_counts
from torch_ir.ir.text.amounts import count, duration, human
from torch_ir.ir.text.text_table import aligned
from torch_ir.pipeline.copied_nodes import own_nodes
from torch_ir.pipeline.layer_of_node import by_layer, layer_of
from torch_ir.pipeline.stages import check_pipeline, sends_of, stage_of

TYPICAL = Roofline(peak=100e12, bandwidth=1e12)


@dataclass(frozen=True)
class StageRow:
    """One stage; `memory` is its peak: weights, inputs and activations."""

    name: str
    first: str  # the layer of its first node
    last: str
    nodes: int
    params: Dim
    weights: Dim  # bytes
    memory: Dim  # bytes
    flops: Dim
    seconds: float
    sends: Dim  # bytes


@dataclass(frozen=True)
class PipelineReport:
    """The stages of a pipeline in order."""

    rows: tuple[StageRow, ...]

    @property
    def balance(self) -> float:
        """Average utilisation of the stages while the slowest is always busy: 1 if all take equally long."""
        slowest = max(row.seconds for row in self.rows)
        return sum(row.seconds for row in self.rows) / (slowest * len(self.rows)) if slowest else 1.0

    def to_dict(self) -> dict[str, Any]:
        """Return the report as plain JSON values."""
        return {"balance": round(self.balance, 4), "stages": [asdict(row) for row in self.rows]}

    def __str__(self) -> str:
        return self.text()

    def text(self, width: int | None = None) -> str:
        """Return the report as a table of at most this width."""
        titles = ("stage", "from", "to", "nodes", "params", "weights", "memory", "FLOPs", "time", "sends")
        table = aligned([titles, *map(_cells, self.rows)], left=(0, 1, 2), width=width, least=(7, 3, 5), long=1)
        return "\n".join([*table, "", f"stages are busy {100 * self.balance:.1f} % of the time of the slowest"])


def pipeline_report(ir: IR, *, device: Roofline = TYPICAL, sizes: Mapping[str, int] | None = None) -> PipelineReport:
    """Report the cost of each stage on a device; with symbolic sizes, amounts are expressions."""
    require_graph(ir, "pipeline_report")
    sizes = sizes or {}
    shapes = {tensor.name: tensor for tensor in sized(check_pipeline(ir), sizes).tensors()}
    sent: dict[int, list[Dim]] = {}
    for send in sends_of(ir):
        sent.setdefault(send.source, []).append(bytes_of(shapes[send.value.name]))
    rows = []
    for number, call in enumerate(ir.nodes):
        stage = stage_of(ir, number)
        layers = by_layer(own_nodes(stage), 1)
        work = cost(stage, _known_in(stage, sizes)).per_run
        rows.append(
            StageRow(
                call.name,
                layer_of(layers[0][0], 1),
                layer_of(layers[-1][0], 1),
                op_counts(stage).total(),
                parameters(stage.params),
                total(map(bytes_of, stage.params)),
                held_by(stage, sizes),
                work.flops,
                Clock(device).graph(work).seconds,
                total(sent.get(number, [])),
            )
        )
    return PipelineReport(tuple(rows))


def held_by(stage: IR, sizes: Mapping[str, int]) -> Dim:
    """Return the peak memory of a stage in bytes."""
    memory = liveness(stage, _known_in(stage, sizes))
    return total([memory.weights, memory.inputs, memory.once, memory.peak])


def _known_in(stage: IR, sizes: Mapping[str, int]) -> dict[str, int]:
    """Return the sizes that a stage uses."""
    return {name: size for name, size in sizes.items() if name in stage.symbols}


def _cells(row: StageRow) -> tuple[str, ...]:
    return (
        row.name,
        row.first or "(model)",
        row.last or "(model)",
        str(row.nodes),
        count(row.params),
        human(row.weights, "B"),
        human(row.memory, "B"),
        human(row.flops),
        duration(row.seconds),
        human(row.sends, "B"),
    )
