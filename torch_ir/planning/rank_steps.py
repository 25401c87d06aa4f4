"""One node on one rank, by the rules of `shard`: where its tensors are afterwards, and how long it takes.

The search asks for the same node with many placements; each case is written and priced once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from torch_ir.analysis.values.prologue import is_fixed
from torch_ir.errors import ShardError
from torch_ir.ir import IR, OpNode, TensorMeta
from torch_ir.ir.graph.origins import is_within, joined, modules_around
from torch_ir.ir.graph.placements import REPLICATE, Placement, plain
from torch_ir.planning.prices import Prices
from torch_ir.sharding.rank_graph import OUTSIDE, Held, RankGraph, Sharding
from torch_ir.sharding.styles import Style

Styles = tuple[tuple[str, Style], ...]


class Done(NamedTuple):
    """Nodes on a rank: where tensors are afterwards, and the seconds they take."""

    held: Mapping[TensorMeta, Held]
    seconds: float


class _Chosen:
    """The styles of one node's enclosing modules, in place of a plan."""

    styles: Mapping[str, Style] = {}

    def around(self, path: str, /) -> tuple[tuple[str, Style], ...]:
        return tuple((module, self.styles[module]) for module in modules_around(path) if module in self.styles)

    def of_weight(self, param: TensorMeta, /) -> dict[str, Placement]:
        return {}

    def is_gathered(self, param: TensorMeta, /) -> bool:
        return False


class Ranks:
    """State that all graphs of one search share: ranks, prices, and interned placements of tensors."""

    def __init__(self, ir: IR, axis: str, ranks: int, prices: Prices) -> None:
        self.prices, self.ranks = prices, ranks
        self.chosen = _Chosen()
        self.sharding = Sharding(ir, self.chosen, axis, ranks, len(ir.mesh), infers=False)
        self._held: dict[Any, Held] = {}
        self.outcomes = 0  # of all graphs

    def shared(self, tensor: TensorMeta, held: Held) -> Held:
        """Return the first equal record of a tensor, so that records can be compared by identity."""
        forms = tuple((place, local.shape, local.stride) for place, local in held.forms)
        return self._held.setdefault((tensor, held.home, held.left, forms), held)


class RankSteps:
    """The nodes of one graph or function on one rank."""

    def __init__(self, ranks: Ranks, ir: IR, path: str, weights: set[TensorMeta], is_function: bool) -> None:
        self.ranks, self.ir, self.path = ranks, ir, path
        self._graph = RankGraph(ranks.sharding, ir, path, is_function)
        self._graph.weights.update(weights)
        outside = (path.rpartition(".")[0] if path else OUTSIDE) if is_function else OUTSIDE
        self._maker = dict.fromkeys((*ir.graph_inputs, *ir.params), outside)
        for node in ir.nodes:
            self._maker.update(dict.fromkeys(node.outputs, joined(path, node.origin.module)))
        # local tensors that depend on weights alone, whose readers run once; in a function, they are inputs
        self._once: set[TensorMeta] | None = None if is_function else set()
        self._given: dict[tuple[TensorMeta, Placement], Held | None] = {}
        self._bytes: dict[int, float] = {}
        self._known: dict[Any, Done | None] = {}
        self._steps: dict[Any, Done | None] = {}

    def given(self, tensor: TensorMeta, place: Placement) -> Held | None:
        """Return an input or weight with this placement; None if it cannot be cut so."""
        key = (tensor, place)
        if key not in self._given:
            self._given[key] = self._new(tensor, place)
        return self._given[key]

    def bytes(self, held: Held) -> float:
        """Return the size of an input or weight on a rank."""
        if id(held) not in self._bytes:
            self._bytes[id(held)] = self.ranks.prices.bytes(held.forms[0][1])
        return self._bytes[id(held)]

    def _new(self, tensor: TensorMeta, place: Placement) -> Held | None:
        if tensor in self._graph.weights:
            place = self._graph.padded(tensor, place)
        self._graph.hold(tensor, Held(place, (), ()), self._maker[tensor])
        try:
            self._graph.give(tensor, place, self._maker[tensor], tensor.name)
        except ShardError:
            return None
        held = self.ranks.shared(tensor, self._graph.held(tensor))
        if self._once is not None and tensor in self._graph.weights:
            self._once.update(local for _, local in held.forms)
        return held

    def run(
        self, nodes: Sequence[OpNode], live: Sequence[TensorMeta], inputs: Mapping[TensorMeta, Held], styles: Styles
    ) -> Done | None:
        """Return what consecutive nodes do, and the records of tensors that are live afterwards; None if impossible."""
        key = (nodes[0], tuple(map(id, inputs.values())), tuple(id(style) for _, style in styles))
        if key not in self._known:
            self._known[key] = self._all(nodes, live, inputs, styles)
        return self._known[key]

    def _all(
        self, nodes: Sequence[OpNode], live: Sequence[TensorMeta], inputs: Mapping[TensorMeta, Held], styles: Styles
    ) -> Done | None:
        held, seconds = dict(inputs), 0.0
        for node in nodes:
            path = node.origin.module
            around = styles and tuple(pair for pair in styles if is_within(path, pair[0]))
            done = self._step(node, held, around)
            if done is None:
                return None
            held.update(done.held)
            seconds += done.seconds
        return Done({tensor: held[tensor] for tensor in live if tensor in held}, seconds)

    def _step(self, node: OpNode, held: Mapping[TensorMeta, Held], styles: Styles) -> Done | None:
        """Return one node's outcome; None if it cannot run so."""
        key = (node, *[id(held[tensor]) for tensor in node.inputs], *[id(style) for _, style in styles])
        if key not in self._steps:
            self._steps[key] = self._written(node, {tensor: held[tensor] for tensor in node.inputs}, styles)
        return self._steps[key]

    def seen(self, node: OpNode, tensor: TensorMeta, held: Held) -> Placement:
        """Return the placement in which a call receives a tensor."""
        self.ranks.chosen.styles = {}
        self._graph.hold(tensor, held, self._maker[tensor])
        return plain(self._graph.seen(tensor, joined(self.path, node.origin.module)))

    def result(self, tensor: TensorMeta, held: Held) -> Held:
        """Return the result of a call, given where the function leaves it."""
        forms = tuple((place, local.copy(tensor.name)) for place, local in held.forms)
        return self.ranks.shared(tensor, Held(held.home, (), forms))

    def left(self, tensor: TensorMeta, held: Held) -> Placement:
        """Return the placement of a result after it has left the modules that compute it."""
        self.ranks.chosen.styles = {}
        self._graph.hold(tensor, held, self._maker[tensor])
        return self._graph.given_as(tensor)

    def moved(self, tensor: TensorMeta, held: Held, place: Placement) -> Done | None:
        """Return a result brought to a placement; None if it cannot be cut so."""
        key = (tensor, id(held), place)
        if key not in self._steps:
            self._steps[key] = self._moved(tensor, held, place)
        return self._steps[key]

    def _moved(self, tensor: TensorMeta, held: Held, place: Placement) -> Done | None:
        self._graph.hold(tensor, held, self._maker[tensor])
        mark = len(self._graph.writer.written)
        try:
            local = self._graph.read(tensor, place)
        except ShardError:
            return None
        made = self.ranks.shared(tensor, Held(place, (), ((place, local),)))
        return Done({tensor: made}, self._seconds(mark))

    def _written(self, node: OpNode, inputs: Mapping[TensorMeta, Held], styles: Styles) -> Done | None:
        self.ranks.chosen.styles = {joined(self.path, module): style for module, style in styles}
        for tensor, each in inputs.items():
            self._graph.hold(tensor, each, self._maker[tensor])
        for tensor in node.outputs:
            self._graph.hold(tensor, Held(REPLICATE, (), ()), self._maker[tensor])
        mark = len(self._graph.writer.written)
        try:
            self._graph.step(node)
        except ShardError:
            return None
        held = {tensor: self.ranks.shared(tensor, self._graph.held(tensor)) for tensor in (*inputs, *node.outputs)}
        return Done(held, self._seconds(mark))

    def _seconds(self, mark: int) -> float:
        """Return the time of the nodes written since, in every run."""
        written = self._graph.writer.written[mark:]
        if self._once is None:
            return self.ranks.prices.seconds(written)
        self._once.update(self._graph.writer.decided.values())
        every = []
        for node in written:
            if self._once.issuperset(node.inputs) and is_fixed(node, self.ir.functions):
                self._once.update(node.outputs)
            else:
                every.append(node)
        return self.ranks.prices.seconds(every)
