"""Coverage: how much of a graph a target can run and what it lacks, before any handler is written.

report = coverage(ir, Contract.load("npu.toml"))
report.share("flops"), report.gaps, report.islands, report.decompositions
print(report)
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass

from torch_ir.analysis.cost_model.node_costs import Cost, NodeCost, Work, added, bodies_of, cost, rounds, sized
from torch_ir.analysis.dependencies.partition import Island, islands
from torch_ir.analysis.shapes.size_polynomials import product
from torch_ir.analysis.values.node_memo import form_of, once_per_form
from torch_ir.ir import IR, OpNode, TensorMeta
from torch_ir.ir.checks.work import bounded
from torch_ir.ir.graph.given_graph import require_graph
from torch_ir.ir.json.json_fields import Dim
from torch_ir.ir.regroup.functions import inline_all
from torch_ir.ir.text.printer import shape_text
from torch_ir.targets.contract import Contract
from torch_ir.targets.coverage_report import CoverageReport, Decomposition, Gap, Piece
from torch_ir.targets.lowered import NO_LOWERING, Placeholder
from torch_ir.targets.target import Target
from torch_ir.targets.work_list import data_tensors

Why = Callable[[OpNode], str]  # returns why a target cannot run a node, or ""


@bounded
def coverage(
    ir: IR, target: Contract | Target, *, sizes: Mapping[str, int] | None = None, decompose: bool = True
) -> CoverageReport:
    """Report how much of a graph a target can run, at these sizes.

    A call that the target does not cover counts by its inner nodes. Control flow is supported if all its bodies are;
    they count for every use, including both branches of a `cond`. Assertions are ignored. With `decompose`, torch's
    decompositions of unsupported operators are tried, which imports torch. Nodes that depend on weights alone are not
    counted: the host computes them once.
    """
    require_graph(ir, "coverage")
    if isinstance(target, Contract) and "torch" in sys.modules:
        target.check_names()
    graph, why = _judged(sized(ir, sizes or {}), target)
    survey, costs = _Survey(why), cost(graph)
    ready = frozenset(tensor for row in costs.once.nodes for tensor in row.node.outputs)
    pieces = survey.region(_Region(graph, costs.per_run, weights=ready))
    gaps = _gaps(survey.rows)
    decompositions: list[Decomposition] = []
    if decompose and gaps:
        if isinstance(target, Contract):
            target.check_names()
        settling = _Settling(graph, _new_node_judge(target))
        decompositions = [settling.decompose(gap) for gap in gaps]
    supported = [row for row, reason in survey.rows if not reason]
    return CoverageReport(
        target.name,
        ir.model_name,
        len(survey.rows),
        len(supported),
        added(row for row, _ in survey.rows),
        added(supported),
        tuple(gaps),
        tuple(pieces),
        tuple(decompositions) if decompose else None,
        {name: symbol.example for name, symbol in ir.symbols.items()},
        len(costs.once.nodes),
    )


def _judged(ir: IR, target: Contract | Target) -> tuple[IR, Why]:
    """Return the graph with the calls that the target takes whole, and the function that judges its nodes."""
    if isinstance(target, Contract):
        copy = ir.clone() if ir.functions else ir
        _open_calls(copy, target)
        return copy, once_per_form(target.why_not)
    lowered = target.lower(ir)
    left = {layer.value.node: layer.value.why for layer in lowered if type(layer.value) is Placeholder}
    top = set(lowered.ir.nodes)
    inner = _new_node_judge(target)
    return lowered.ir, lambda node: "; ".join(left.get(node, ())) if node in top else inner(node)


def _new_node_judge(target: Contract | Target) -> Why:
    """Return the function that judges nodes outside the top level of the graph."""
    if isinstance(target, Contract):
        return target.why_not
    return lambda node: "" if target.handles(node.op_type) else NO_LOWERING


def _open_calls(ir: IR, contract: Contract) -> None:
    """Inline the calls that the contract does not name, here and in every function."""

    def is_foreign(call: OpNode) -> bool:
        body = ir.functions.get(call.attrs["function"])
        return body is not None and not body.symbols and not body.params and not contract.names(call.op_type)

    inline_all(ir, is_foreign)
    for body in ir.functions.values():
        _open_calls(body, contract)


@dataclass(frozen=True)
class _Region:
    """The graph or a body of control flow: how often it runs, and which of its inputs are weights."""

    ir: IR
    costs: Cost
    times: Dim = 1
    name: str = ""
    weights: frozenset[TensorMeta] = frozenset()

    def bodies(self, node: OpNode) -> list[_Region]:
        """Return the bodies that a node runs; its last operands are their inputs, in order."""
        regions = []
        for name in bodies_of(node):
            body = self.ir.functions[name]
            operands = node.inputs[len(node.inputs) - len(body.graph_inputs) :]
            pairs = zip(body.graph_inputs, operands, strict=False)
            weights = frozenset(inner for inner, outer in pairs if outer.param is not None or outer in self.weights)
            often = product(self.times, rounds(node))
            path = f"{self.name}.{name}".lstrip(".")
            regions.append(_Region(body, self.costs.functions[name], often, path, weights))
        return regions

    def piece(self, island: Island, work: Mapping[OpNode, Work]) -> Piece:
        return Piece(
            self.name,
            tuple(node.name for node in island.nodes),
            added(work[node] for node in island.nodes).flops,
            product(self.times, island.bytes_in),
            product(self.times, island.bytes_out),
        )


class _Survey:
    """Collects every node of a graph and its control flow bodies, with its cost and the objection to it."""

    def __init__(self, why: Why) -> None:
        self.why = why
        self.rows: list[tuple[NodeCost, str]] = []

    def region(self, region: _Region) -> list[Piece]:
        """Judge the nodes of a region; return its islands."""
        supported: dict[OpNode, Work] = {}
        inside: list[Piece] = []
        for row in region.costs.nodes:
            node, reason, work = row.node, self.why(row.node), row.times(region.times)
            if not node.outputs:  # an assertion
                continue
            bodies = [] if node.is_call else region.bodies(node)
            if bodies:
                first = len(self.rows)
                pieces = [piece for body in bodies for piece in self.region(body)]
                if not reason and any(why for _, why in self.rows[first:]):
                    reason = "its body has unsupported operators"
                inside += pieces if reason else []
                work = Work()
            self.rows.append((NodeCost(*work.amounts(), node=node), reason))
            if not reason:
                supported[node] = work
        found = islands(region.ir, supported, region.weights)
        return [*(region.piece(island, supported) for island in found), *inside]


def _gaps(rows: Iterable[tuple[NodeCost, str]]) -> list[Gap]:
    """Group the unsupported nodes by operator and reason, in descending order of FLOPs, bytes and count."""
    groups: dict[tuple[str, str], list[NodeCost]] = {}
    for row, reason in rows:
        if reason:
            groups.setdefault((row.node.op_type, reason), []).append(row)
    gaps = [
        Gap(
            op_type,
            reason,
            tuple(row.node for row in group),
            tuple(dict.fromkeys(_shapes(row.node) for row in group)),
            tuple(dict.fromkeys(filter(None, (row.node.origin.module for row in group)))),
            tuple(dict.fromkeys(filter(None, (row.node.origin.source for row in group)))),
            added(group),
        )
        for (op_type, reason), group in groups.items()
    ]
    return sorted(gaps, key=lambda gap: gap.weight, reverse=True)


def _shapes(node: OpNode) -> str:
    """Return shapes such as `1x64x56x56 -> 1x64x28x28`, without weights unless there is nothing else."""
    data, made = data_tensors(node)
    return f"{' '.join(map(shape_text, data))} -> {' '.join(map(shape_text, made))}".strip()


class _Settling:
    """Decomposes operators until every part is supported or cannot be decomposed."""

    def __init__(self, ir: IR, why: Why) -> None:
        self.ir = ir
        self.why = why
        self.known: dict[Hashable, tuple[dict[str, None], dict[str, str]]] = {}

    def decompose(self, gap: Gap) -> Decomposition:
        """Decompose all nodes of a gap."""
        into: dict[str, None] = {}
        missing: dict[str, str] = {}
        for node in gap.nodes:
            parts, lacking = self._parts(node, gap.why, frozenset())
            into.update(parts)
            missing.update(lacking)
        return Decomposition(gap.op_type, len(gap.nodes), tuple(into), missing)

    def _parts(self, node: OpNode, why: str, around: frozenset[str]) -> tuple[dict[str, None], dict[str, str]]:
        """Return the supported operators of a node's decomposition, and the unsupported ones with reasons."""
        key = form_of(node)
        if key not in self.known:
            self.known[key] = self._decomposed(node, why, around | {node.op_type})
        return self.known[key]

    def _decomposed(self, node: OpNode, why: str, around: frozenset[str]) -> tuple[dict[str, None], dict[str, str]]:
        from torch_ir.analysis.shapes.decompositions import decomposed  # imports torch

        own = self.ir.functions.get(node.attrs["function"]) if node.is_call else None
        body = own or decomposed(node, self.ir.device)
        if isinstance(body, str):
            return {}, {node.op_type: body if len(around) == 1 else why}
        parts: dict[str, None] = {}
        lacking: dict[str, str] = {}
        for step in body.nodes:
            reason = self.why(step)
            if not reason:
                parts[step.op_type] = None
            elif step.op_type in around:  # recursive decomposition
                lacking[step.op_type] = reason
            else:
                inner, more = self._parts(step, reason, around)
                parts.update(inner)
                lacking.update(more)
        return parts, lacking
