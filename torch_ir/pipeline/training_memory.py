"""Report the memory of each stage of a training pipeline, from the graph alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from torch_ir.analysis import Roofline, cost, liveness
from torch_ir.analysis.cost_model.table_rows import parameters
from torch_ir.analysis.cost_model.times import Clock
from torch_ir.analysis.cost_model.traffic import bytes_of
from torch_ir.errors import PipelineError
from torch_ir.ir import IR, OpNode, TensorMeta
from torch_ir.ir.graph.given_graph import require_graph
from torch_ir.ir.graph.training_parts import OPTIMIZER
from torch_ir.ir.text.amounts import count, duration, human
from torch_ir.ir.text.text_table import aligned
from torch_ir.pipeline.pipeline_parts import BACKWARD, FORWARD, Part, parts_of, stages_of
from torch_ir.pipeline.stage_report import TYPICAL
from torch_ir.pipeline.stages import stage_of


@dataclass(frozen=True)
class TrainingStageRow:
    """One stage, in bytes. Of each micro-batch in flight, a stage holds what its backward part will read."""

    name: str
    params: int
    weights: int
    state: int  # of the optimiser
    gradients: int  # sums over the micro-batches
    saved: int  # for each micro-batch in flight
    in_flight: int  # micro-batches
    working: int  # the most that one part allocates beside all that
    updating: int  # what the update allocates: the new values of weights and state, until the step returns
    memory: int  # the peak of forward and backward
    peak: int  # the peak of the step, with its update
    seconds: float  # of forward and backward of one micro-batch


@dataclass(frozen=True)
class TrainingReport:
    """The stages of a training pipeline in order."""

    rows: tuple[TrainingStageRow, ...]
    micro_batches: int

    @property
    def bubble(self) -> float:
        """The share of time in which a stage waits, if all take as long as the slowest."""
        return (len(self.rows) - 1) / (self.micro_batches + len(self.rows) - 1)

    def to_dict(self) -> dict[str, Any]:
        """Return the report as plain JSON values."""
        rows = [asdict(row) for row in self.rows]
        return {"micro_batches": self.micro_batches, "bubble": round(self.bubble, 4), "stages": rows}

    def __str__(self) -> str:
        return self.text()

    def text(self, width: int | None = None) -> str:
        """Return the report as a table of at most this width."""
        titles = ("stage", "params", "weights", "state", "gradients", "saved", "in flight", "memory", "peak", "time")
        table = aligned([titles, *map(_cells, self.rows)], left=(0,), width=width)
        message = f"{self.micro_batches} micro-batches, one forward and one backward in turn: a stage waits"
        return "\n".join([*table, "", f"{message} {100 * self.bubble:.1f} % of the time if all take equally long"])


def training_report(ir: IR, micro_batches: int, *, device: Roofline = TYPICAL) -> TrainingReport:
    """Report the memory of each stage while that many micro-batches run in the order of one forward, one backward."""
    require_graph(ir, "training_report")
    if micro_batches < 1:
        raise PipelineError(f"micro_batches must be at least 1, not {micro_batches}")
    parts, stages = parts_of(ir), stages_of(ir)
    graphs = {part: stage_of(ir, number) for number, part in enumerate(map(Part.of, ir.nodes))}
    rows = []
    for stage in range(stages):
        own = {part: graph for part, graph in graphs.items() if part.stage == stage}
        rows.append(_row(stage, min(stages - stage, micro_batches), micro_batches > 1, parts, own, Clock(device)))
    return TrainingReport(tuple(rows), micro_batches)


def _row(
    stage: int, in_flight: int, is_summed: bool, parts: Mapping[Part, OpNode], graphs: Mapping[Part, IR], clock: Clock
) -> TrainingStageRow:
    held = {param.key: param for graph in graphs.values() for param in graph.params}
    state = sum(_bytes(param) for key, param in held.items() if str(key).startswith(f"{OPTIMIZER}."))
    weights = sum(map(_bytes, held.values())) - state
    forward, backward = Part(FORWARD, stage), Part(BACKWARD, stage)
    repeated = {call for part, call in parts.items() if part.is_repeated}
    gradients = sum(_bytes(tensor) for tensor in _made(parts.get(backward)) if _is_summed(tensor, repeated))
    saved = sum(_bytes(tensor) for tensor in _made(parts.get(forward)) if parts.get(backward) in tensor.consumers)
    peaks = {part: int(liveness(graph).peak) for part, graph in graphs.items()}
    before, after = peaks.get(forward, 0), peaks.get(backward, 0)
    received = sum(_bytes(tensor) for tensor in graphs[backward].graph_inputs) - saved if backward in graphs else 0
    running = max((in_flight - 1) * saved + before, in_flight * saved + received + after)
    once = max((peak for part, peak in peaks.items() if not part.is_repeated), default=0)
    memory = weights + state + gradients * is_summed + running  # new gradients are results of backward
    work = [cost(graph).per_run for part, graph in graphs.items() if part.is_repeated]
    return TrainingStageRow(
        name=f"stage{stage}",
        params=int(parameters([param for key, param in held.items() if not str(key).startswith(f"{OPTIMIZER}.")])),
        weights=weights,
        state=state,
        gradients=gradients,
        saved=saved,
        in_flight=in_flight,
        working=running - in_flight * saved,
        updating=once,
        memory=memory,
        peak=max(memory, weights + state + gradients + once),
        seconds=sum(clock.graph(each).seconds for each in work),
    )


def _made(call: OpNode | None) -> tuple[TensorMeta, ...]:
    return () if call is None else tuple(call.outputs)


def _is_summed(tensor: TensorMeta, repeated: set[OpNode]) -> bool:
    """Whether a result is kept until all micro-batches are done."""
    return any(reader not in repeated for reader in tensor.consumers)


def _bytes(tensor: TensorMeta) -> int:
    found = bytes_of(tensor)
    if not isinstance(found, int):
        raise PipelineError(f"the size of {tensor.name!r}, {list(tensor.shape)}, is open; specialize the graph first")
    return found


def _cells(row: TrainingStageRow) -> tuple[str, ...]:
    sizes = (row.weights, row.state, row.gradients, row.saved)
    return (
        row.name,
        count(row.params),
        *(human(size, "B") for size in sizes),
        str(row.in_flight),
        human(row.memory, "B"),
        human(row.peak, "B"),
        duration(row.seconds),
    )
