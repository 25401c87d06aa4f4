"""State of a search at each node of a graph: live tensors, and the choices that nodes depend on."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from functools import cached_property

from torch_ir.errors import PlanError
from torch_ir.ir import IR, OpNode, TensorMeta
from torch_ir.ir.checks.limits import Budget
from torch_ir.ir.graph.origins import is_below, is_within, joined, modules_around
from torch_ir.ir.graph.placements import REPLICATE, Padded, Partial, Placement, Shard
from torch_ir.planning.style_options import Variable, ring_variables, variables_of
from torch_ir.sharding.rank_graph import is_function_call

Keys = Mapping[TensorMeta, Sequence[str]]  # of weights, relative to the graph's path
_LEAST_NODES, _MOST_COPIES = 20_000, 10  # in all scopes, and for each node of a larger graph


@dataclass(frozen=True)
class Called:
    """All calls of one function that take weights of the same names: they make the same choices."""

    scopes: Scopes
    calls: tuple[OpNode, ...]
    _operands: dict[OpNode, dict[TensorMeta, TensorMeta]] = field(default_factory=dict, compare=False)

    def operands(self, node: OpNode) -> dict[TensorMeta, TensorMeta]:
        """Return the inputs of the body with the tensors that a call passes, except weights of the called module."""
        if node not in self._operands:
            named = dict(zip(node.args, node.inputs, strict=True))
            inputs = self.scopes.ir.graph_inputs
            self._operands[node] = {each: named[each.name] for each in inputs if each not in self.scopes.keys}
        return self._operands[node]


@dataclass(frozen=True)
class Scope:
    """Consecutive nodes after a choice, up to the next one: what they read and leave, and variables by number."""

    nodes: tuple[OpNode, ...]
    inputs: tuple[TensorMeta, ...]  # what they read and do not compute
    entering: tuple[TensorMeta, ...]  # of these, weights and graph inputs that nothing before them reads
    live: tuple[TensorMeta, ...]  # what later nodes read
    opening: tuple[int, ...]  # variables that begin here
    open: tuple[int, ...]  # variables that later nodes depend on
    styled: tuple[int, ...]  # variables whose modules contain a node
    call: int | None  # the variable of calls; other nodes are not in the same scope


class Scopes:
    """The scopes of a graph in order; the last one is that of its results."""

    def __init__(
        self,
        ir: IR,
        path: str,
        keys: Keys,
        classes: Mapping[str, str],
        *,
        weights: Iterable[TensorMeta] = (),
        inputs: Sequence[Variable] = (),
        is_function: bool = False,
        caches: Iterable[TensorMeta] = (),
        dispatch: str = "all_to_all",
        may_ring: Callable[[OpNode], bool],
        budget: Budget | None = None,
    ) -> None:
        self._budget = budget or Budget(max(_LEAST_NODES, _MOST_COPIES * sum(1 for _ in ir.all_nodes())))
        if not self._budget.take(len(ir.nodes)):
            raise PlanError("the functions of the graph are called in too many modules to be planned in each")
        self.ir, self.path, self.keys, self.is_function, self._may_ring = ir, path, keys, is_function, may_ring
        self.weights = {*weights, *keys}
        self._caches = set(caches)
        called = self._called(classes, dispatch)
        passed = {t for each in called for call in each.calls for t in call.inputs} - _read(ir, called)
        own = {tensor: names for tensor, names in keys.items() if tensor not in passed}
        relative = {
            module[len(path) :].removeprefix("."): name for module, name in classes.items() if is_within(module, path)
        }
        chosen = variables_of(own, relative, dispatch)
        self.variables: list[Variable | Called] = [*inputs, *chosen, *ring_variables(ir.nodes, chosen), *called]

    def result_place(self, tensor: TensorMeta, place: Placement, ranks: int) -> Placement:
        """Return where a result must be: of a graph, batches and caches may stay sharded, others must be whole.

        A pending sum is scattered by batches if it can be, which is half of what making it whole sends.
        """
        if self.is_function:
            return place
        batch = tensor.shape[0] if tensor.shape else 0
        if isinstance(place, Partial) and isinstance(batch, int) and batch and batch % ranks == 0:
            return Shard(0)
        is_cache = tensor in self._caches and isinstance(place, Shard) and not isinstance(place, Padded)
        return place if is_cache or place == Shard(0) else REPLICATE

    def _called(self, classes: Mapping[str, str], dispatch: str) -> list[Called]:
        groups: dict[tuple[object, ...], list[tuple[OpNode, dict[str, tuple[str, ...]]]]] = {}
        for node in self.ir.nodes:
            if is_function_call(node):
                owned = self._owned(node)
                key = (node.attrs["function"], tuple(owned.items()), node.origin.module if not owned else "")
                groups.setdefault(key, []).append((node, owned))
        found = []
        for group in groups.values():
            node, owned = group[0]
            body = self.ir.functions[node.attrs["function"]]
            passed = {name for name, tensor in zip(node.args, node.inputs, strict=True) if tensor in self.weights}
            scopes = Scopes(
                body,
                joined(self.path, node.origin.module),
                {tensor: owned[tensor.name] for tensor in body.graph_inputs if tensor.name in owned},
                classes,
                weights=[tensor for tensor in body.graph_inputs if tensor.name in passed],
                is_function=True,
                dispatch=dispatch,
                may_ring=self._may_ring,
                budget=self._budget,
            )
            found.append(Called(scopes, tuple(call for call, _ in group)))
        return found

    def _owned(self, node: OpNode) -> dict[str, tuple[str, ...]]:
        """Return the weights of the called module by argument, with their keys relative to it."""
        module = node.origin.module
        found = {}
        for name, tensor in zip(node.args, node.inputs, strict=True):
            names = self.keys.get(tensor, ())
            if names and module and len(tensor.consumers) == 1 and all(is_below(key, module) for key in names):
                found[name] = tuple(key[len(module) + 1 :] for key in names)
        return found

    @cached_property
    def rows(self) -> list[Scope]:
        """The scopes in order."""
        nodes = [*self.ir.nodes, self.ir.returns]
        called = {
            node: number
            for number, each in enumerate(self.variables)
            if isinstance(each, Called)
            for node in each.calls
        }
        inputs = [tuple(dict.fromkeys(self._inputs(node, called.get(node)))) for node in nodes]
        first: dict[TensorMeta, int] = {}
        last: dict[TensorMeta, int] = {}
        for at, read in enumerate(inputs):
            for tensor in read:
                first.setdefault(tensor, at)
                last[tensor] = at
        spans = [self._span(each, first, last) for each in self.variables]
        starts = {0, len(nodes) - 1, *(start for start, _ in spans if start >= 0)}
        starts |= {at for at in range(1, len(nodes)) if called.get(nodes[at]) != called.get(nodes[at - 1])}
        ends = sorted(starts)
        begun: dict[int, list[int]] = {}
        for number, (start, _) in enumerate(spans):
            begun.setdefault(start, []).append(number)
        alive: list[TensorMeta] = []
        open_: list[int] = []
        rows = []
        for start, end in zip(ends, [*ends[1:], len(nodes)], strict=True):
            read = tuple(dict.fromkeys(each for at in range(start, end) for each in inputs[at]))
            made = [each for node in nodes[start:end] if node is not self.ir.returns for each in node.outputs]
            inside = set(made)
            read = tuple(each for each in read if each not in inside)
            entering = tuple(each for each in read if each.producer is None and first[each] >= start)
            alive = [each for each in dict.fromkeys((*alive, *entering, *made)) if last.get(each, -1) >= end]
            open_ = [number for number in (*open_, *begun.get(start, ())) if spans[number][1] >= end]
            styled = dict.fromkeys(number for node in nodes[start:end] for number in self._styling(node))
            rows.append(
                Scope(
                    tuple(nodes[start:end]),
                    read,
                    entering,
                    tuple(alive),
                    tuple(begun.get(start, ())),
                    tuple(open_),
                    tuple(styled),
                    called.get(nodes[start]),
                )
            )
        return rows

    def _inputs(self, node: OpNode, call: int | None) -> Iterable[TensorMeta]:
        if call is not None:
            variable = self.variables[call]
            assert isinstance(variable, Called)
            return variable.operands(node).values()
        changed = [target for target, _ in self.ir.mutations] if node is self.ir.returns else []
        return [*node.inputs, *changed]

    def _span(
        self, variable: Variable | Called, first: Mapping[TensorMeta, int], last: Mapping[TensorMeta, int]
    ) -> tuple[int, int]:
        """Return the first and last node that depend on a choice; (-1, -1) if none does."""
        if isinstance(variable, Called):
            places = [self._place[node] for node in (variable.calls[0], variable.calls[-1])]
        elif variable.nodes:
            places = [self._place[node] for node in variable.nodes if self._is_open(variable)]
        else:
            places = [at for each in variable.weights if each in first for at in (first[each], last[each])]
            places += [at for module in variable.modules for at in self._inside.get(module, ())]
        return (min(places), max(places)) if places else (-1, -1)

    def _is_open(self, variable: Variable) -> bool:
        """Whether there is a choice: none for a ring that cannot be faster."""
        return not variable.nodes or any(map(self._may_ring, variable.nodes))

    def with_rings(self) -> Scopes:
        """Return the same scopes, with a choice for each attention."""
        made = copy(self)
        made._may_ring = bool
        made.variables = [
            replace(each, scopes=each.scopes.with_rings()) if isinstance(each, Called) else each
            for each in self.variables
        ]
        for name in ("rows", "_by_owner"):  # are computed again
            vars(made).pop(name, None)
        return made

    @cached_property
    def _place(self) -> dict[OpNode, int]:
        return {node: at for at, node in enumerate(self.ir.nodes)}

    @cached_property
    def _inside(self) -> dict[str, list[int]]:
        """The first and last node inside each module."""
        found: dict[str, list[int]] = {}
        for at, node in enumerate(self.ir.nodes):
            for module in modules_around(node.origin.module):
                found.setdefault(module, [at, at])[1] = at
        return found

    @cached_property
    def _by_owner(self) -> dict[str | OpNode, list[int]]:
        """The variables of each module, or of single nodes."""
        found: dict[str | OpNode, list[int]] = {}
        for number, variable in enumerate(self.variables):
            if isinstance(variable, Variable) and self._is_open(variable):
                for owner in variable.nodes or variable.modules:
                    found.setdefault(owner, []).append(number)
        return found

    def _styling(self, node: OpNode) -> Iterable[int]:
        """Yield the variables whose modules contain a node."""
        owners: list[str | OpNode] = [*modules_around(node.origin.module), node]
        for owner in owners:
            yield from self._by_owner.get(owner, ())


def _read(ir: IR, called: Sequence[Called]) -> set[TensorMeta]:
    """Return the tensors that nodes other than calls read, and those that calls take as other operands."""
    calls = {node for each in called for node in each.calls}
    direct = {tensor for node in (*ir.nodes, ir.returns) if node not in calls for tensor in node.inputs}
    return direct | {tensor for each in called for node in each.calls for tensor in each.operands(node).values()}
