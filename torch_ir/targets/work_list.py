"""The work list of a lowering: one row per missing operator, ranked by the work that it does."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch_ir.analysis.cost_model.node_costs import Cost, NodeCost, Work, added
from torch_ir.analysis.shapes.size_polynomials import weight_of
from torch_ir.ir import OpNode, TensorMeta
from torch_ir.ir.text.amounts import plural
from torch_ir.ir.text.printer import shape_text
from torch_ir.ir.text.text_table import aligned
from torch_ir.targets.coverage_text import percent

_SHOWN_REASONS = 2


@dataclass(frozen=True)
class WorkShape:
    """One set of shapes of an operator, the nodes that have it, and their work."""

    inputs: tuple[TensorMeta, ...]
    outputs: tuple[TensorMeta, ...]
    count: int
    work: Work

    def to_dict(self) -> dict[str, Any]:
        shapes = {
            "inputs": [list(tensor.shape) for tensor in self.inputs],
            "outputs": [list(tensor.shape) for tensor in self.outputs],
        }
        return {**shapes, "count": self.count, "flops": self.work.flops, "bytes": self.work.bytes}

    def __str__(self) -> str:
        return f"{' '.join(map(shape_text, self.inputs))} -> {' '.join(map(shape_text, self.outputs))}".strip()


@dataclass(frozen=True)
class WorkItem:
    """A missing operator: how often it occurs, its work, its shapes by their work, and each reason once."""

    op_type: str
    nodes: tuple[str, ...]
    classes: tuple[str, ...]  # of the modules that call it
    reasons: tuple[str, ...]
    shapes: tuple[WorkShape, ...]
    work: Work
    whole: Work  # of a run of the graph

    @property
    def count(self) -> int:
        return len(self.nodes)

    def share(self, by: str) -> float | None:
        """Return its share of the `flops` or `bytes` of a run, from 0 to 1; None if it depends on open sizes."""
        amount, whole = getattr(self.work, by), getattr(self.whole, by)
        if isinstance(amount, str) or isinstance(whole, str):
            return None
        return amount / whole if whole else 0.0

    def to_dict(self) -> dict[str, Any]:
        """Return the row as plain JSON values; shapes are lists of sizes, those with most work first."""
        return {
            "op_type": self.op_type,
            "count": self.count,
            **{by: {"total": getattr(self.work, by), "share": self.share(by)} for by in ("flops", "bytes")},
            "reasons": list(self.reasons),
            "classes": list(self.classes),
            "shapes": [shape.to_dict() for shape in self.shapes],
            "nodes": list(self.nodes),
        }

    def cells(self) -> list[str]:
        """Return the cells of the table of the work list."""
        others = len(self.shapes) - 1
        more = f" and {plural(others, 'other')}" if others else ""
        shares = [percent(self.share(by)) for by in ("flops", "bytes")]
        return [self.op_type, str(self.count), *shares, f"{self.shapes[0]}{more}", self._why()]

    def _why(self) -> str:
        others = len(self.reasons) - _SHOWN_REASONS
        more = [f"and {plural(others, 'other reason')}"] if others > 0 else []
        return "; ".join([*self.reasons[:_SHOWN_REASONS], *more])

    def __str__(self) -> str:
        op_type, count, flops, size, shapes, reasons = self.cells()
        return f"{op_type}  x{count}  {flops} of FLOPs, {size} of bytes  {shapes}  ({reasons})"


def work_items(
    missing: Iterable[tuple[OpNode, Sequence[str]]], costs: Cost, classes: Mapping[str, str]
) -> list[WorkItem]:
    """Return one row per operator that every run computes, most FLOPs first, then bytes, then nodes."""
    rows = {row.node.name: row for row in costs.per_run.nodes}
    groups: dict[str, list[tuple[NodeCost, Sequence[str]]]] = {}
    for node, why in missing:
        if node.name in rows:
            groups.setdefault(node.op_type, []).append((rows[node.name], why))
    found = [
        WorkItem(
            op_type,
            tuple(row.node.name for row, _ in group),
            tuple(dict.fromkeys(name for row, _ in group if (name := classes.get(row.node.origin.module)))),
            tuple(dict.fromkeys(reason for _, why in group for reason in why)),
            _shapes([row for row, _ in group]),
            added(row for row, _ in group),
            costs.per_run,
        )
        for op_type, group in groups.items()
    ]
    return sorted(found, key=lambda item: _weight(item.work, item.count))


def table_of(items: Sequence[WorkItem], width: int | None) -> list[str]:
    """Format the work list as a table."""
    titles = ["operator", "count", "FLOPs", "bytes", "shapes, most work first", "why"]
    return aligned([titles, *(item.cells() for item in items)], left=(0, 4, 5), width=width, long=4)


def _shapes(rows: Sequence[NodeCost]) -> tuple[WorkShape, ...]:
    groups: dict[tuple[Any, ...], list[NodeCost]] = {}
    for row in rows:
        groups.setdefault(tuple(tuple(t.shape for t in side) for side in data_tensors(row.node)), []).append(row)
    found = [WorkShape(*data_tensors(group[0].node), len(group), added(group)) for group in groups.values()]
    return tuple(sorted(found, key=lambda shape: _weight(shape.work, shape.count)))


def data_tensors(node: OpNode) -> tuple[tuple[TensorMeta, ...], tuple[TensorMeta, ...]]:
    """Return the inputs of a node, without weights unless there is nothing else, and its outputs."""
    return tuple(tensor for tensor in node.inputs if tensor.param is None) or tuple(node.inputs), tuple(node.outputs)


def _weight(work: Work, count: int) -> tuple[float, float, int]:
    return -weight_of(work.flops), -weight_of(work.bytes), -count
