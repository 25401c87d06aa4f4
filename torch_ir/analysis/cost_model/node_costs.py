"""Cost of a graph: multiply-adds, FLOPs and memory traffic of every node, and their totals.

    costs = cost(ir)                      # or cost(ir, sizes={"batch": 8})
    costs.flops, costs.bytes              # numbers, or expressions such as "1024*batch"
    costs.by_module(depth=2), costs.by_op()
    costs.once, costs.per_run             # what depends on weights alone, and the rest

`flops` is twice `macs` and counts only contractions, as `torch.utils.flop_counter` does; the cost of element-wise
operators, reductions and normalisations shows in the bytes, which `traffic.py` counts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

from torch_ir.analysis.cost_model.communication import communication
from torch_ir.analysis.cost_model.experts import grouped_work, is_grouped
from torch_ir.analysis.cost_model.flop_formulas import FORMULAS, macs
from torch_ir.analysis.cost_model.routing import CASES, EXPECTED
from torch_ir.analysis.cost_model.traffic import traffic
from torch_ir.analysis.cost_model.uncounted import is_uncounted
from torch_ir.analysis.cost_model.user_formulas import own_formula, own_work
from torch_ir.analysis.shapes.size_polynomials import product, total, weight_of
from torch_ir.analysis.values.node_memo import once_per_form
from torch_ir.analysis.values.prologue import split_prologue
from torch_ir.errors import GraphError, did_you_mean
from torch_ir.ir import IR, FunctionRef, OpNode
from torch_ir.ir.graph.given_graph import ExampleInputs, Model, graph_of
from torch_ir.ir.graph.operator_sets import base_name
from torch_ir.ir.graph.origins import joined, modules_around
from torch_ir.ir.json.json_fields import Dim
from torch_ir.ir.regroup.functions import CHARACTERS, FUSED, MOST_COPIES, MOST_INLINE, called_by
from torch_ir.ir.sizes.specialize import replace_symbols, substitute

COND = "higher_order.cond"
# Operators that run their body once per item of this argument.
_LOOPS = {"higher_order.scan": "xs.0", "higher_order.map_impl": "arg1.0"}


@dataclass(frozen=True)
class Work:
    """Amounts of work: numbers, or expressions over the open sizes of the graph."""

    macs: Dim = 0
    flops: Dim = 0
    bytes_read: Dim = 0
    bytes_written: Dim = 0
    communication: Dim = 0  # bytes that one rank of a sharded graph sends to others

    @property
    def bytes(self) -> Dim:
        return total([self.bytes_read, self.bytes_written])

    @property
    def intensity(self) -> float:
        """FLOPs per byte, with open sizes as 1024; 0 if nothing moves."""
        moved = weight_of(self.bytes)
        return weight_of(self.flops) / moved if moved else 0.0

    def times(self, count: Dim) -> Work:
        return self if count == 1 else Work(*(product(count, amount) for amount in self.amounts()))

    def amounts(self) -> tuple[Dim, Dim, Dim, Dim, Dim]:
        return self.macs, self.flops, self.bytes_read, self.bytes_written, self.communication


@dataclass(frozen=True)
class NodeCost(Work):
    """The work of one node, including the functions that it runs."""

    node: OpNode = field(kw_only=True)


@dataclass(frozen=True)
class Cost(Work):
    """The work of a graph; `functions` has that of each function by name, for one run.

    `unknown` names the operators without a FLOP formula, such as those of other libraries and Fourier transforms: they
    count as 0 FLOPs.
    """

    nodes: tuple[NodeCost, ...] = ()
    functions: Mapping[str, Cost] = field(default_factory=dict)
    unknown: tuple[str, ...] = ()
    _counted: IR | None = field(default=None, repr=False, compare=False)  # None for a function

    @cached_property
    def once(self) -> Cost:
        """The part that depends on weights alone and is computed only when they are bound."""
        return self._part(self._prologue)

    @cached_property
    def per_run(self) -> Cost:
        """The part that every run computes."""
        return self._part({row.node.name for row in self.nodes} - self._prologue) if self._prologue else self

    @cached_property
    def _prologue(self) -> set[str]:
        """Names, as the counted nodes may be copies with substituted sizes."""
        return set() if self._counted is None else {node.name for node in split_prologue(self._counted)[0]}

    def _part(self, names: set[str]) -> Cost:
        rows = tuple(row for row in self.nodes if row.node.name in names)
        return Cost(*added(rows).amounts(), rows, self.functions, self.unknown)

    def __getitem__(self, node: str) -> NodeCost:
        """Return the cost of the node of that name."""
        for row in self.nodes:
            if row.node.name == node:
                return row
        raise KeyError(f"no node is called {node!r}{did_you_mean(node, (row.node.name for row in self.nodes))}")

    def by_op(self, *, whole_calls: bool = False) -> dict[str, Work]:
        """Return the work of each op_type, most FLOPs first, then most bytes.

        The nodes inside a call are counted; with `whole_calls`, it counts under its own op_type.
        """
        return _sorted(self._by_op(whole_calls))

    def by_module(self, depth: int | None = None, *, whole_calls: bool = False) -> dict[str, Work]:
        """Return the work of each module; with `depth`, deeper modules are merged into their parent."""
        end = None if depth is None else depth + 1
        modules = self._by_module(whole_calls).items()
        return _sorted(_rolled_up((modules_around(path)[:end][-1], work) for path, work in modules))

    def _by_op(self, whole_calls: bool) -> dict[str, Work]:
        return self._grouped(lambda node: ("", node.op_type), Cost._by_op, whole_calls)

    def _by_module(self, whole_calls: bool) -> dict[str, Work]:
        return self._grouped(lambda node: (node.origin.module, ""), Cost._by_module, whole_calls)

    def _grouped(
        self, key: Callable[[OpNode], tuple[str, str]], ask: Callable[[Cost, bool], dict[str, Work]], whole_calls: bool
    ) -> dict[str, Work]:
        """Group the nodes by place and name; a call has the names that `ask` finds in its function, at its own place.

        Each function is counted once and multiplied by its calls at a place.
        """
        names = () if whole_calls else called_by(row.node for row in self.nodes if row.node.is_call)
        inside: dict[str, dict[str, Work]] = {
            name: ask(self.functions[name], whole_calls) for name in names if name in self.functions
        }
        groups: dict[str, list[Work]] = {}
        calls: Counter[tuple[str, str]] = Counter()
        characters = 0
        for row in self.nodes:
            place, name = key(row.node)
            function: str = row.node.attrs["function"] if is_open(row.node) else ""
            if not inside.get(function):
                groups.setdefault(joined(place, name), []).append(row)
                continue
            if (place, function) not in calls:
                characters += sum(len(place) + len(name) for name in inside[function])
                self._check_rows(groups, characters)
                for name in inside[function]:  # groups are in the order in which they first occur
                    groups.setdefault(joined(place, name), [])
            calls[place, function] += 1
        for (place, function), times in calls.items():
            for name, work in inside[function].items():
                groups[joined(place, name)].append(work.times(times))
        return {name: added(group) for name, group in groups.items()}

    def _check_rows(self, names: Collection[str], characters: int) -> None:
        """Raise GraphError for too many rows: those of nested calls in different modules can grow exponentially."""
        if len(names) <= MOST_INLINE and characters <= MOST_INLINE * CHARACTERS:
            return
        most = max(MOST_INLINE, MOST_COPIES * self._size)
        if len(names) > most or characters > most * CHARACTERS:
            message = f"the functions that the graph calls have {len(names)} modules or more in all calls"
            raise GraphError(f"{message}, with paths of {characters} characters", "$.functions", rule="R2")

    @cached_property
    def _size(self) -> int:
        return len(self.nodes) + sum(body._size for body in self.functions.values())


def cost(
    ir: IR | Model,
    sizes: Mapping[str, int] | None = None,
    *,
    example_inputs: ExampleInputs | None = None,
    case: str = EXPECTED,
) -> Cost:
    """Return the cost of a graph, or of a model that is captured with `example_inputs`.

    What depends on open sizes not given in `sizes` is an expression of them. The experts of a mixture that get tokens
    are those to expect, or with `case` "lower" or "upper" as few or as many as possible.

    A call costs what its body costs; a fused operator only moves its inputs and outputs. Of a `cond`, the branch with
    more FLOPs, then bytes, counts; the body of a `while_loop` counts once, as the number of iterations is unknown;
    those of `scan` and `map` count per item.
    """
    if case not in CASES:
        raise GraphError(f"unknown case {case!r:.40}; expected one of {', '.join(CASES)}")
    ir = graph_of(ir, example_inputs, "cost")
    return replace(Counting(ir.mesh, case).graph(sized(ir, sizes or {})), _counted=ir)


def sized(ir: IR, sizes: Mapping[str, int]) -> IR:
    """Return the graph with these sizes substituted and arguments named; the graph itself if nothing changes.

    Unlike `IR.specialize`, this also accepts data-dependent sizes, as assumptions.
    """
    check_sizes(ir, sizes)
    unnamed = not all(node.has_named_args for node in ir.all_nodes())
    if not sizes and not unnamed:
        return ir
    copy = ir.clone()
    if unnamed:
        _name_arguments(copy)
    replace_symbols(copy, sizes)
    return copy


def check_sizes(ir: IR, sizes: Mapping[str, int]) -> None:
    """Raise GraphError for sizes that the graph does not have or does not allow."""
    for name, size in sizes.items():
        if name not in ir.symbols:
            known = ", ".join(ir.symbols) or "none"
            hint = did_you_mean(name, ir.symbols) or f"; open sizes: {known}"
            raise GraphError(f"unknown size {name!r}{hint}")
        if isinstance(size, bool) or not isinstance(size, int) or not ir.symbols[name].admits(size):
            raise GraphError(f"{name} = {size!r:.40} is out of range: {ir.symbols[name].range}")
    for text in ir.constraints:
        if substitute(text, sizes) is False:
            message = ", ".join(f"{name} = {size}" for name, size in sizes.items())
            raise GraphError(f"the graph holds only where {text}, but {message}")


def _name_arguments(ir: IR) -> None:
    from torch_ir.ops.schema import name_arguments  # imports torch, which graphs with named arguments do not need

    for graph in ir.all_graphs():
        for node in graph.nodes:
            name_arguments(node)


class Counting:
    """Counts a graph; shared functions and nodes of the same form are counted once."""

    def __init__(self, mesh: Mapping[str, int], case: str) -> None:
        self.mesh = mesh
        self.case = case
        self.unknown: dict[str, None] = {}
        self.operator = once_per_form(self._operator)

    def graph(self, ir: IR) -> Cost:
        functions = {name: self.graph(body) for name, body in ir.functions.items()}
        rows = tuple(NodeCost(*self.node(node, functions).amounts(), node=node) for node in ir.nodes)
        return Cost(*added(rows).amounts(), rows, functions, tuple(self.unknown))

    def node(self, node: OpNode, functions: Mapping[str, Cost]) -> Work:
        if len(node.args) != len(node.inputs):
            raise GraphError(f"{node!r} does not match the arguments of its operator, so its cost is unknown")
        bodies = [functions[name] for name in bodies_of(node) if name in functions]
        if bodies:
            return _of_bodies(node, bodies)
        if is_grouped(node):  # depends on the router, which is not part of the node's form
            grouped = grouped_work(node, self.case)
            return Work(grouped.macs, product(2, grouped.macs), grouped.bytes_read, grouped.bytes_written)
        return self.operator(node)

    def _operator(self, node: OpNode) -> Work:
        if (formula := own_formula(node.op_type)) is not None:
            flops, read, written = own_work(node, formula)
            return Work(_halved(flops), flops, read, written, communication(node, self.mesh))
        if is_uncounted(node.op_type):
            self.unknown[node.op_type] = None
        contractions = macs(node)
        return Work(contractions, product(2, contractions), *traffic(node), communication(node, self.mesh))


def _of_bodies(node: OpNode, bodies: list[Cost]) -> Work:
    if node.op_type == COND:
        return max(bodies, key=lambda body: (weight_of(body.flops), weight_of(body.bytes)))
    work = added(bodies).times(rounds(node))
    return Work(work.macs, work.flops, *traffic(node), work.communication) if is_fused(node) else work


def _halved(flops: Dim) -> Dim:
    return flops // 2 if isinstance(flops, int) else f"({flops}) // 2"


def is_fused(node: OpNode) -> bool:
    """Whether a node is a fused operator, which moves only its own inputs and outputs."""
    return node.op_type.startswith(FUSED)


def is_open(node: OpNode) -> bool:
    """Whether the nodes inside a node are counted one by one: it is a call, and not a fused operator."""
    return node.is_call and not is_fused(node)


def bodies_of(node: OpNode) -> list[FunctionRef]:
    """Return the functions that a node runs, except those already counted by its formula."""
    return [] if base_name(node.op_type) in FORMULAS else called_by([node])


def rounds(node: OpNode) -> Dim:
    """Return how often a node runs its bodies, as far as known."""
    loop = _LOOPS.get(node.op_type)
    items = node.inputs[node.args.index(loop)].shape if loop in node.args else ()
    return items[0] if items else 1


def added(rows: Iterable[Work]) -> Work:
    """Return the sum of the work."""
    columns = list(zip(*(row.amounts() for row in rows), strict=True))
    return Work(*map(total, columns))


def _rolled_up(parts: Iterable[tuple[str, Work]]) -> dict[str, Work]:
    groups: dict[str, list[Work]] = {}
    for name, work in parts:
        groups.setdefault(name, []).append(work)
    return {name: added(group) for name, group in groups.items()}


def _sorted(sums: dict[str, Work]) -> dict[str, Work]:
    return dict(sorted(sums.items(), key=lambda item: (-weight_of(item[1].flops), -weight_of(item[1].bytes))))
