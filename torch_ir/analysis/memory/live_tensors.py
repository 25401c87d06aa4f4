"""Liveness: which tensors are alive at every step, and how much memory they take.

    memory = liveness(ir)                        # or liveness(ir, sizes={"batch": 8})
    memory.peak, memory.at.node, memory.alive(memory.at)

A tensor is alive from its producer to the last node that reads it or a view of it; outputs and mutated values are alive
to the end. A view has no separate memory: its base counts. Inputs, weights, and tensors computed once from weights
are held by the caller and counted separately. This is what `IRExecutor` does; workspace memory of kernels is not
included.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from torch_ir.analysis.cost_model.node_costs import bodies_of, check_sizes
from torch_ir.analysis.cost_model.traffic import is_view, span_of
from torch_ir.analysis.shapes.size_polynomials import Sum, as_float, number_of, product, total, weight_of
from torch_ir.analysis.values.prologue import split_prologue
from torch_ir.errors import ExpressionError
from torch_ir.ir import IR, OpNode, TensorMeta
from torch_ir.ir.checks.limits import Budget
from torch_ir.ir.graph.given_graph import require_graph
from torch_ir.ir.graph.operator_sets import base_name
from torch_ir.ir.json.json_fields import Dim
from torch_ir.ir.regroup.functions import FUSED
from torch_ir.ir.sizes.expressions import Number
from torch_ir.ir.sizes.specialize import substitute

_COND = "higher_order.cond"
_OF_EACH = ("aten.broadcast_tensors", "aten.meshgrid")  # each output is a view of an input
_MOST_CHARACTERS = 1 << 20  # of the sums that are asked for
_CHARACTERS_PER_NODE = 200  # in addition


@dataclass(frozen=True)
class Step:
    """A node, and the bytes held while it runs.

    `makes` are the tensors that it allocates, with their bytes; `dies` are those that are not read afterwards. `inside`
    is what the functions that it runs hold in addition to their results. `weight` is `bytes` as a number, for
    comparison: open sizes count as 1024.
    """

    node: OpNode
    makes: Mapping[TensorMeta, Dim]
    dies: tuple[TensorMeta, ...]
    inside: Dim
    weight: float
    _sums: _Sums = field(repr=False, compare=False)
    _number: int = field(repr=False, compare=False)

    @cached_property
    def bytes(self) -> Dim:
        """Everything held; with open sizes, an expression, which is written when it is first asked for."""
        return self._sums.at(self._number, self.node)


class _Sums:
    """The sum of what is held at each step; with n open sizes, all of them would take n * n characters."""

    def __init__(self) -> None:
        self.changes: list[tuple[list[Dim], Dim, list[Dim]]] = []  # made, held inside, freed
        self._work = Budget(_MOST_CHARACTERS)
        self._earlier: list[tuple[int, Sum]] = []  # a number of steps, and what they left; at most one in each thread

    def add(self, made: list[Dim], inside: Dim, freed: list[Dim]) -> None:
        self.changes.append((made, inside, freed))
        self._work.left += _CHARACTERS_PER_NODE

    def at(self, number: int, node: OpNode) -> Dim:
        """Return what is held at a step; asking for step after step continues the sum."""
        done, held = self._earlier.pop() if self._earlier else (0, Sum())
        if done > number:
            done, held = 0, Sum()
        for made, _, freed in self.changes[done:number]:
            for size in made:
                held.add(size)
            for size in freed:
                held.add(size, -1)
        self._earlier.append((number, held))
        made, inside, _ = self.changes[number]
        found = total([held.size(), *made, inside])
        if not self._work.take(len(str(found))):
            message = f"live memory at {node.name!r:.80} is a sum of too many symbolic sizes"
            raise ExpressionError(f"{message}; set them to numbers (sizes=, or --dim NAME=SIZE)")
        return found


@dataclass(frozen=True)
class Liveness:
    """The steps of a run in order, and what is held all the time.

    With open sizes, amounts are expressions, and `at` is the step that needs most if every open size is 1024.
    """

    steps: tuple[Step, ...]
    inputs: Dim
    weights: Dim
    once: Dim  # computed from weights, and kept
    read: Dim  # of the weights, those that are read in every run

    @cached_property
    def at(self) -> Step | None:
        """The first step with the peak memory; None for a graph without nodes."""
        return _largest_step(self.steps)

    @property
    def peak(self) -> Dim:
        """Peak memory of activations, including outputs."""
        return self.at.bytes if self.at else 0

    def alive(self, step: Step) -> dict[TensorMeta, Dim]:
        """Return the tensors allocated while a step runs, with their bytes."""
        alive: dict[TensorMeta, Dim] = {}
        for each in self.steps:
            alive.update(each.makes)
            if each is step:
                break
            for tensor in each.dies:
                del alive[tensor]
        return alive


def liveness(ir: IR, sizes: Mapping[str, int] | None = None) -> Liveness:
    """Return what is alive at every step of the graph in program order, at these sizes.

    A call needs what its body needs. Of a `cond`, the branch that needs more counts; of a loop, one iteration.
    """
    require_graph(ir, "liveness")
    check_sizes(ir, sizes or {})
    once, every = split_prologue(ir)
    memory = Memory(ir, every, sizes or {})
    ready, used = {tensor for node in once for tensor in node.outputs}, {*every, ir.returns}
    kept = {memory.owner[tensor] for node in every for tensor in node.inputs if tensor in ready}
    return Liveness(
        tuple(memory.steps(every)),
        memory.sum(ir.graph_inputs),
        memory.sum(ir.params),
        memory.sum(tensor for tensor in kept if tensor.producer is not None),
        memory.sum(param for param in ir.params if not used.isdisjoint(param._uses)),
    )


class Memory:
    """Memory model of a graph: which tensors share storage, the size of each, and what nodes hold inside.

    `nodes` are those that run; what they read but do not produce is held by the caller.
    """

    def __init__(self, ir: IR, nodes: Sequence[OpNode], sizes: Mapping[str, int]) -> None:
        self.sizes = sizes
        self._known: dict[TensorMeta, Dim] = {}
        called = dict.fromkeys(name for node in ir.nodes for name in bodies_of(node) if name in ir.functions)
        bodies = {name: Memory(ir.functions[name], ir.functions[name].nodes, sizes) for name in called}
        self.owner: dict[TensorMeta, TensorMeta] = {tensor: tensor for tensor in ir.tensors()}
        self.results = ir.graph_outputs
        self.given = ir.graph_inputs
        self.inside: dict[OpNode, Dim] = {}
        for node in ir.nodes:
            own = [bodies[name] for name in bodies_of(node) if name in bodies]
            self.owner.update(zip(node.outputs, self._owners(node, own), strict=True))
            self.inside[node] = self._inside(node, own)
        running = set(nodes)
        self.made = {node: self._made_by(node) if node in running else [] for node in ir.nodes}
        self.kept = {self.owner[tensor] for tensor in ir.returns.inputs}
        self._nodes = nodes

    @cached_property
    def peak(self) -> Dim:
        """The peak in the given order."""
        return self.peak_of(self._nodes)

    def size(self, tensor: TensorMeta) -> Dim:
        """Return the bytes of a tensor's storage; for a call's result, as allocated by its body."""
        if tensor not in self._known:
            self._known[tensor] = product(substitute(span_of(tensor), self.sizes))
        return self._known[tensor]

    def sum(self, tensors: Iterable[TensorMeta]) -> Dim:
        return total(map(self.size, tensors))

    def steps(self, nodes: Sequence[OpNode]) -> Iterator[Step]:
        """Yield the steps if the nodes run in this order."""
        dying = self._last_reads(nodes)
        held: Number = 0
        sums = _Sums()
        for number, node in enumerate(nodes):
            makes = {tensor: self.size(tensor) for tensor in self.made[node]}
            inside, freed = self.inside[node], [self.size(tensor) for tensor in dying[node]]
            sums.add([*makes.values()], inside, freed)
            held += sum(map(number_of, makes.values()))
            yield Step(node, makes, tuple(dying[node]), inside, as_float(held + number_of(inside)), sums, number)
            held -= sum(map(number_of, freed))

    def peak_of(self, nodes: Sequence[OpNode]) -> Dim:
        """Return the peak memory if the nodes run in this order."""
        largest = _largest_step(self.steps(nodes))
        return largest.bytes if largest else 0

    def read_by(self, node: OpNode) -> list[TensorMeta]:
        """Return the owners of the storage that a node reads, each once."""
        return list(dict.fromkeys(self.owner[tensor] for tensor in node.inputs))

    def _last_reads(self, nodes: Sequence[OpNode]) -> dict[OpNode, list[TensorMeta]]:
        """Map each node to the tensors freed after it: read for the last time, or never read."""
        seen = set(self.kept)
        mortal = {tensor for node in nodes for tensor in self.made[node]}
        dying: dict[OpNode, list[TensorMeta]] = {}
        for node in reversed(nodes):
            used = dict.fromkeys([*self.read_by(node), *self.made[node]])
            dying[node] = [tensor for tensor in used if tensor in mortal and tensor not in seen]
            seen.update(used)
        return dying

    def _made_by(self, node: OpNode) -> list[TensorMeta]:
        """Return the outputs for which a node allocates storage."""
        return [tensor for tensor in node.outputs if self.owner[tensor] is tensor]

    def _owners(self, node: OpNode, bodies: Sequence[Memory]) -> list[TensorMeta]:
        """Return the owner of each output's storage."""
        if node.is_call and bodies:
            return self._owners_of_results(node, bodies[0])
        if not is_view(node) or not node.inputs:
            return list(node.outputs)
        is_of_each = base_name(node.op_type) in _OF_EACH and len(node.outputs) == len(node.inputs)
        shown = node.inputs if is_of_each else [node.inputs[0]] * len(node.outputs)
        return [self.owner[tensor] for tensor in shown]

    def _owners_of_results(self, node: OpNode, body: Memory) -> list[TensorMeta]:
        """Return the owners of a call's outputs; a result of a body may alias an input or another result."""
        operands = dict(zip(node.args, node.inputs, strict=True))
        owners = {tensor: self.owner[operands[tensor.name]] for tensor in body.given if tensor.name in operands}
        found = []
        for inner, outer in zip(map(body.owner.__getitem__, body.results), node.outputs, strict=True):
            self._known[outer] = body.size(inner)
            found.append(owners.setdefault(inner, outer))
        return found

    def _inside(self, node: OpNode, bodies: Sequence[Memory]) -> Dim:
        """Return the peak inside the bodies, without their results except for loops; a fused operator holds nothing."""
        if node.op_type.startswith(FUSED):
            return 0
        ends_with_results = node.is_call or node.op_type == _COND
        return _largest(
            total([body.peak, product(-1, body.sum(_made_results(body)))]) if ends_with_results else body.peak
            for body in bodies
        )


def _made_results(body: Memory) -> list[TensorMeta]:
    return [tensor for tensor in body.kept if tensor.producer in body.made]


def _largest_step(steps: Iterable[Step]) -> Step | None:
    return max(steps, key=lambda step: step.weight, default=None)


def _largest(amounts: Iterable[Dim]) -> Dim:
    return max(amounts, key=weight_of, default=0)
