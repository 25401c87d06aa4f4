"""Named operator sets: decompose a graph to one of them, and report what is left.

core, report = to_opset(ir, "core-aten")
print(report)                       # core-aten of torch 2.13.0 (193 operators, digest ...): complete, 5 operators used
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

import torch

from torch_ir.ir import IR, OpNode
from torch_ir.ir.checks.work import bounded
from torch_ir.ir.graph.given_graph import require_graph
from torch_ir.ir.regroup.functions import called_by
from torch_ir.ir.text.printer import shape_text
from torch_ir.ops.schema import operator_names
from torch_ir.passes.decompose.decompose_pass import CORE, CORE_ATEN, PRIMS, decompose_to, set_of
from torch_ir.passes.pipeline import optimize

_LIST = "list"
_NAMESPACES = {CORE_ATEN: "aten", PRIMS: "prims"}


@dataclass(frozen=True)
class LeftOperator:
    """An operator outside the set that torch cannot decompose: its nodes, their distinct shapes, and why."""

    op_type: str
    nodes: int
    shapes: tuple[str, ...]
    why: str

    def __str__(self) -> str:
        return f"{self.op_type}  {self.nodes}x  {'; '.join(self.shapes)}  ({self.why})"


@dataclass(frozen=True)
class OpsetReport:
    """A graph in an operator set: the set, how often each of its operators is used, and what is left.

    `operators` are those of the set in the installed torch, whose version is `torch`; `digest` identifies them.
    """

    name: str
    torch: str
    operators: frozenset[str]
    used: Mapping[str, int]
    left: tuple[LeftOperator, ...]

    @property
    def is_complete(self) -> bool:
        """Whether every operator of the graph is in the set."""
        return not self.left

    @property
    def digest(self) -> str:
        """Return 12 digits that are equal if the set has the same operators."""
        return hashlib.sha256("\n".join(sorted(self.operators)).encode()).hexdigest()[:12]

    def __str__(self) -> str:
        what = f"{self.name} of torch {self.torch} ({len(self.operators)} operators, digest {self.digest})"
        if self.is_complete:
            return f"{what}: complete, {len(self.used)} operators used"
        return "\n".join([f"{what}: {len(self.left)} operators are left", *(f"  {each}" for each in self.left)])


@bounded
def to_opset(ir: IR, to: str | Iterable[str]) -> tuple[IR, OpsetReport]:
    """Return a copy with only operators of a set, as far as torch can decompose the others, and a report.

    The set is `core-aten`, `prims`, or a list of operators, in which `aten.add` means all its overloads. Functions of
    the graph are kept; fused operators outside the set are inlined.
    """
    require_graph(ir, "to_opset")
    chosen = to if isinstance(to, str) else ",".join(to)
    is_allowed = set_of(chosen)
    made, report = optimize(ir, passes=[decompose_to.with_options(to=chosen), "dead-code"])
    reasons = dict(decline.why.partition(": ")[::2] for decline in report.declined)
    nodes = list(_operators(made, is_allowed))
    used = Counter(node.op_type for node in nodes)
    others: dict[str, list[OpNode]] = {}
    for node in nodes:
        if not is_allowed(node.op_type):
            others.setdefault(node.op_type, []).append(node)
    left = [_left(op_type, found, reasons) for op_type, found in others.items()]
    name = CORE_ATEN if chosen == CORE else chosen if chosen in _NAMESPACES else _LIST
    listed = [_NAMESPACES[name]] if name in _NAMESPACES else chosen.split(",")
    spaces = {item.strip().partition(".")[0] for item in listed}
    known = frozenset(op_type for space in spaces for op_type in operator_names(space) if is_allowed(op_type))
    inside = {op_type: count for op_type, count in used.items() if op_type not in others}
    return made, OpsetReport(name, torch.__version__.partition("+")[0], known, inside, tuple(left))


def _operators(ir: IR, is_allowed: Callable[[str], bool]) -> Iterator[OpNode]:
    """Yield the nodes of a graph, with those inside a call in place of a call that is not in the set."""
    opened = [node for node in ir.nodes if not (node.is_call and is_allowed(node.op_type))]
    yield from (node for node in ir.nodes if not node.is_call or is_allowed(node.op_type))
    for name in called_by(opened):
        yield from _operators(ir.functions[name], is_allowed)


def _left(op_type: str, nodes: list[OpNode], reasons: Mapping[str, str]) -> LeftOperator:
    shapes = dict.fromkeys(shapes_of(node) for node in nodes)
    return LeftOperator(op_type, len(nodes), tuple(shapes), reasons.get(op_type, "it is not an operator of ATen"))


def shapes_of(node: OpNode) -> str:
    """Return the shapes of a node: `2x4 4x8 -> 2x8`."""
    sides = (" ".join(shape_text(tensor) for tensor in side) for side in (node.inputs, node.outputs))
    return " -> ".join(sides)
