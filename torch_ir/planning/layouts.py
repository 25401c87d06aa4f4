"""The best layouts of a graph on the ranks of one mesh axis: rows of a plan, time, and memory."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache, cached_property, partial

from torch_ir.analysis.memory.kv_cache_report import kv_cache
from torch_ir.ir import IR, Dim, OpNode, TensorMeta
from torch_ir.ir.graph.garbage_collection import uncollected
from torch_ir.ir.graph.origins import joined
from torch_ir.ir.graph.placements import REPLICATE, Placement, Shard
from torch_ir.planning.graph_scopes import Called, Scopes
from torch_ir.planning.graph_search import Choices, End, GraphSearch, Way
from torch_ir.planning.prices import Cluster, Prices
from torch_ir.planning.rank_steps import Ranks
from torch_ir.planning.stage_choice import Unit
from torch_ir.planning.style_options import Choice, Row, Variable, classes_of

_CUT_INPUT = (0, 1)  # dimensions of an input that may be sharded: batch, and sequence or heads
_MOST_SHAPES = 6  # inputs of further shapes are replicated
_PASSES = 6  # over the scores, which no fused kernel keeps: maximum, difference (2), power (2), sum


@dataclass(frozen=True)
class Layout:
    """Sharding of a graph over one axis: the arguments of `shard`, and the cost of its parts in order."""

    axis: str
    ranks: int
    search: GraphSearch
    end: End

    @property
    def scopes(self) -> Scopes:
        return self.search.scopes

    @property
    def seconds(self) -> float:
        return self.end.way.seconds

    @property
    def bytes(self) -> float:
        """The memory of weights and inputs."""
        return self.end.way.bytes

    @cached_property
    def rows(self) -> dict[str, Row]:
        return dict(rows_of(self.scopes, self.end.choices))

    @property
    def divides(self) -> bool:
        """Whether any weight or input is sharded."""
        return next(rows_of(self.scopes, self.end.choices), None) is not None or bool(self.inputs)

    @cached_property
    def inputs(self) -> dict[str, str]:
        """The placements of inputs that are sharded."""
        return {
            tensor.name: str(place)
            for variable, choice in zip(self.scopes.variables, self.end.choices, strict=True)
            if isinstance(variable, Variable) and choice
            for tensor, place in zip(variable.weights, choice.weights, strict=True)
            if isinstance(place, Shard) and tensor in self.scopes.ir.graph_inputs
        }

    @property
    def outputs(self) -> dict[str, str]:
        """The placements of outputs that stay sharded."""
        pairs = zip(self.scopes.ir.graph_outputs, self.end.places, strict=True)
        return {tensor.name: str(place) for tensor, place in pairs if isinstance(place, Shard)}

    @cached_property
    def units(self) -> list[Unit]:
        return _units(self.scopes, self.end.way)

    def with_rings(self) -> Layout | None:
        """Return the layout in which no rank gathers the keys and values of all; None if none does here."""
        scopes = self.scopes.with_rings()
        search = GraphSearch(self.search.ranks, scopes, math.inf)
        with uncollected():
            ends = search.ends({}, search.same(_with_rings(scopes, self.end.choices)))
        return next((replace(self, search=search, end=end) for end in ends if end.way.seconds != self.seconds), None)


def layouts(
    ir: IR,
    axis: str,
    ranks: int,
    cluster: Cluster,
    sizes: Mapping[str, int],
    most_bytes: float = math.inf,
    dispatch: str = "all_to_all",
) -> list[Layout]:
    """Return the layouts that no other one beats in both time and memory, fastest first; those beyond are left out.

    `dispatch` is the style of experts to which tokens are sent.
    """
    prices = Prices(cluster, {**ir.mesh, axis: ranks}, sizes)
    changed = {target for target, _ in ir.mutations}
    keys = {
        param: param.param.keys
        for param in ir.params
        if ranks > 1 and param.param and param.param.in_state_dict and param not in changed and param.is_static
    }
    inputs = _input_variables(ir) if ranks > 1 else []
    caches = kv_cache(ir).left
    scopes = Scopes(
        ir, "", keys, classes_of(ir), weights=ir.params, inputs=inputs, caches=caches, dispatch=dispatch,
        may_ring=cache(partial(_may_pay, prices=prices, ranks=ranks)),
    )  # fmt: skip
    with uncollected():
        search = GraphSearch(Ranks(ir, axis, ranks, prices), scopes, most_bytes)
        ends = search.ends({})
    found: list[Layout] = []
    for end in sorted(ends, key=lambda end: (end.way.seconds, end.way.bytes)):
        if not found or end.way.bytes < found[-1].bytes:
            found.append(Layout(axis, ranks, search, end))
    return [each for each in found if ranks == 1 or each.divides]


def _input_variables(ir: IR) -> list[Variable]:
    """Return the choice of a placement for inputs of the same shape, such as the caches of all layers."""
    groups: dict[tuple[Dim, ...], list[TensorMeta]] = {}
    for tensor in ir.graph_inputs:
        groups.setdefault(tensor.shape, []).append(tensor)
    found = []
    for shape, tensors in list(groups.items())[:_MOST_SHAPES]:
        cuts = [Shard(dim) for dim in _CUT_INPUT[: len(shape)] if isinstance(shape[dim], int) and int(shape[dim]) > 1]
        places: list[Placement] = [REPLICATE, *cuts]
        choices = tuple(Choice((), (place,) * len(tensors), ()) for place in places)
        found.append(Variable(tuple(tensors), (), choices))
    return found


def _with_rings(scopes: Scopes, choices: Choices) -> Choices:
    """Return choices in which every attention sends its keys and values in a ring."""
    pairs = zip(scopes.variables, choices, strict=True)
    return tuple(
        _with_rings(each.scopes, choice)
        if isinstance(each, Called) and choice
        else each.choices[-1]
        if isinstance(each, Variable) and each.nodes
        else choice
        for each, choice in pairs
    )


def rows_of(scopes: Scopes, choices: Choices, path: str = "") -> Iterator[tuple[str, Row]]:
    """Yield the rows of a plan for the choices of a graph at a path."""
    for variable, choice in zip(scopes.variables, choices, strict=True):
        if choice is None:
            continue
        if isinstance(variable, Called):
            for call in variable.calls:
                yield from rows_of(variable.scopes, choice, joined(path, call.origin.module))
        else:
            yield from ((joined(path, name), row) for name, row in choice.rows)


def _units(scopes: Scopes, way: Way) -> list[Unit]:
    """Return the parts of a graph that a pipeline can be cut between, with their costs."""
    steps: list[tuple[float, float]] = []
    while way.before is not None:
        steps.append((way.seconds - way.before.seconds, way.bytes - way.before.bytes))
        way = way.before
    found: list[Unit] = []
    for scope, (seconds, size) in zip(scopes.rows, reversed(steps), strict=True):
        calls = scope.nodes if scope.call is not None else scope.nodes[:1]
        names = [call.origin.module if scope.call is not None else call.name for call in calls]
        found += [Unit(name, seconds / len(names), size / len(names)) for name in names]
    last = found.pop()  # the results, which belong to what computes them
    found[-1:] = [Unit(each.name, each.seconds + last.seconds, each.bytes + last.bytes) for each in found[-1:]]
    return found


def _may_pay(node: OpNode, prices: Prices, ranks: int) -> bool:
    """Whether attention in a ring of ranks may take less time than with gathered keys and values.

    It takes at least the first message and all of attention with the scores in memory, and at least all messages;
    gathering takes two collectives and attention.
    """
    if ranks == 1:
        return False
    cluster, network = prices.cluster, prices.cluster.network
    query, key, value = node.inputs[:3]
    sizes = [prices.bytes(each) / ranks for each in (key, value)]
    gathered, message = sum(network.ring(ranks, 1, size) for size in sizes), network.chain(ranks, 1, sum(sizes))
    scores = prices.bytes(query) / ranks / int(query.shape[-1]) * int(key.shape[-2])
    attention = prices.seconds([node]) / ranks + ranks * sum(sizes) / cluster.device.bandwidth
    is_hidden = message + _PASSES * scores / cluster.device.bandwidth < gathered
    return is_hidden and ranks * message < gathered + attention
