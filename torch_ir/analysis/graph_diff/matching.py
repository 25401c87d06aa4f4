"""Match the nodes of two graphs, independent of names and order.

Only nodes of the same operator match. Several strategies are tried, and the one with the fewest differences is used: by
position, if the sequences of operators are equal; or first nodes that compute the same from the inputs on, then nodes
that lead to the outputs in the same way, then similar nodes, with weights identified by shape, or by key, or with nodes
identified by name.
"""

from __future__ import annotations

from collections.abc import Container, Hashable, Iterator, Sequence
from functools import cache

from torch_ir.analysis.graph_diff.alignment import Pair, aligned, in_order
from torch_ir.analysis.graph_diff.node_keys import Keys, NodeKeys
from torch_ir.analysis.graph_diff.tensor_pairs import Counterparts
from torch_ir.ir import IR, OpNode, TensorMeta

# Strategies: kinds of keys that identify nodes, most reliable first.
_WAYS = (
    ("forward", "backward", "alike forward", "alike backward", "alike", "module", "operator"),
    ("forward", "own at its place", "backward", "own", "module", "operator"),
    ("forward", "backward", "own", "module", "operator"),
    ("forward", "backward", "name", "own", "module", "operator"),
)
_IN_ANY_ORDER = frozenset(("forward", "backward", "alike forward", "alike backward", "name"))


def matched(one: IR, other: IR) -> list[Pair]:
    """Return the positions of matching nodes, sorted by those in the first graph."""
    if _rank(other) < _rank(one):  # the result does not depend on which graph comes first
        return sorted((left, right) for right, left in matched(other, one))
    signs = _Signs(one, other)
    found = []
    for pairs in _ways(one, other, signs):
        found.append((signs.differing(pairs), len(pairs) - len(in_order(pairs)), pairs))
        if found[-1][:2] == (0, 0):
            break
    return min(found, key=lambda way: way[:2])[2]


def _rank(ir: IR) -> tuple[int, list[tuple[str, str]]]:
    return len(ir.nodes), [(node.op_type, node.name) for node in ir.nodes]


def _ways(one: IR, other: IR, signs: _Signs) -> Iterator[list[Pair]]:
    if [node.op_type for node in one.nodes] == [node.op_type for node in other.nodes]:
        yield [(at, at) for at in range(len(one.nodes))]
    for way in _WAYS:
        pairs = _Pairs(one, other)
        for sign in way:
            (pairs.add_in_any_order if sign in _IN_ANY_ORDER else pairs.add_in_order)(*signs.by(sign))
        yield list(_related(one, other, sorted(pairs.found.items())))


def _related(one: IR, other: IR, pairs: list[Pair]) -> Iterator[Pair]:
    """Drop pairs that have nothing in common but the operator: no name, module, operand or reader."""
    counterparts = Counterparts(one, other, pairs)
    read = set(zip(one.returns.inputs, other.returns.inputs, strict=False))
    for left, right in pairs:
        read.update(zip(one.nodes[left].inputs, other.nodes[right].inputs, strict=False))
    for left, right in pairs:
        mine, its = one.nodes[left], other.nodes[right]
        if (
            mine.name == its.name
            or (mine.origin.module and mine.origin.module == its.origin.module)
            or any(map(counterparts.has, mine.inputs, its.inputs))
            or not read.isdisjoint(zip(mine.outputs, its.outputs, strict=False))
        ):
            yield left, right


class _Signs:
    """The keys of the nodes of two graphs, by kind of key."""

    def __init__(self, one: IR, other: IR) -> None:
        self._graphs = one, other
        numbers: dict[Hashable, int] = {}
        self._keys = NodeKeys(one, numbers), NodeKeys(other, numbers)
        self.by = cache(lambda sign: [keys.by(sign) for keys in self._keys])

    def differing(self, pairs: list[Pair]) -> int:
        """Count the unmatched nodes, and the matched ones that differ in what they are or read; outputs count as one.

        A pair from different modules counts as two unmatched nodes, unless it differs in weights only.
        """
        one, other = self._graphs
        counterparts = Counterparts(one, other, pairs)
        mine, its = (keys.plain for keys in self._keys)
        count = len(one.nodes) + len(other.nodes) - 2 * len(pairs)
        for left, right in pairs:
            first, second = one.nodes[left], other.nodes[right]
            made = _without_weights(first), _without_weights(second)
            if mine[left] != its[right] or not _are_all(counterparts, *made):
                count += 1 if first.origin.module == second.origin.module else 2
            elif not _are_all(counterparts, first.inputs, second.inputs):
                count += 1
        results = zip(one.returns.inputs, other.returns.inputs, strict=False)
        return count + (not all(counterparts.are(*result) for result in results))


def _without_weights(node: OpNode) -> list[TensorMeta]:
    return [tensor for tensor in node.inputs if not tensor.param]


def _are_all(counterparts: Counterparts, mine: Sequence[TensorMeta], its: Sequence[TensorMeta]) -> bool:
    return len(mine) == len(its) and all(map(counterparts.are, mine, its))


class _Pairs:
    """The matched nodes, by position."""

    def __init__(self, one: IR, other: IR) -> None:
        self._names = [node.name for node in one.nodes], [node.name for node in other.nodes]
        self.found: dict[int, int] = {}
        self._taken: set[int] = set()

    def add_in_any_order(self, mine: Keys, its: Keys) -> None:
        """Pair nodes of equal keys: first those of equal names, then the others in order."""
        named = [list(zip(keys, names, strict=True)) for keys, names in zip((mine, its), self._names, strict=True)]
        for left, right in (named, (mine, its)):
            waiting: dict[Hashable, list[int]] = {}
            for at, key in reversed(list(enumerate(right))):
                if at not in self._taken:
                    waiting.setdefault(key, []).append(at)
            for at, key in enumerate(left):
                if at not in self.found and waiting.get(key):
                    self._add(at, waiting[key].pop())

    def add_in_order(self, mine: Keys, its: Keys) -> None:
        """Pair nodes of equal keys in the order of both, between pairs that are already in order."""
        kept = in_order(sorted(self.found.items()))
        left = self._waiting(mine, self.found, {place: number for number, (place, _) in enumerate(kept)})
        right = self._waiting(its, self._taken, {place: number for number, (_, place) in enumerate(kept)})
        for first, second in aligned([key for _, key in left], [key for _, key in right]):
            if left[first][0] not in self.found:
                self._add(left[first][0], right[second][0])

    @staticmethod
    def _waiting(keys: Keys, found: Container[int], kept: dict[int, int]) -> list[tuple[int, Hashable]]:
        """Return the positions of unmatched nodes, and of the pairs in order as anchors, with a key each."""
        places = ((at, ("kept", kept[at]) if at in kept else ("alone", key)) for at, key in enumerate(keys))
        return [(at, key) for at, key in places if at in kept or at not in found]

    def _add(self, left: int, right: int) -> None:
        self.found[left] = right
        self._taken.add(right)
