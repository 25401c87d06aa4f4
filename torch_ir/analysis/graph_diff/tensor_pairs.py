"""Counterparts: the corresponding tensor in another graph."""

from __future__ import annotations

from collections.abc import Iterable

from torch_ir.analysis.graph_diff.alignment import Pair
from torch_ir.analysis.graph_diff.node_keys import facts
from torch_ir.ir import IR, TensorMeta


class Counterparts:
    """Inputs correspond by position, weights by key, and node outputs by matching nodes.

    Without `with_weights`, any weight is the counterpart of any other.
    """

    def __init__(self, one: IR, other: IR, pairs: Iterable[Pair], *, with_weights: bool = True) -> None:
        self._with_weights = with_weights
        self._of = dict(zip(one.graph_inputs, other.graph_inputs, strict=False))
        by_keys = {keys_of(tensor): tensor for tensor in other.params}
        self._of.update((tensor, by_keys[keys_of(tensor)]) for tensor in one.params if keys_of(tensor) in by_keys)
        for left, right in pairs:
            self._of.update(zip(one.nodes[left].outputs, other.nodes[right].outputs, strict=False))
        self._found = set(self._of.values())

    def has(self, mine: TensorMeta, its: TensorMeta) -> bool:
        """Whether the second is the counterpart of the first."""
        return self._of.get(mine) is its

    def are(self, mine: TensorMeta | None, its: TensorMeta | None) -> bool:
        """Whether these two correspond; so do two without counterparts, as that is reported elsewhere.

        The output of a node that replaces several nodes corresponds to that of the last of them.
        """
        if mine is None or its is None:
            return mine is its
        if mine.param and its.param and not self._with_weights:
            return True
        if mine in self._of:
            return self.has(mine, its) or (its not in self._found and _replaces(mine, its))
        return its not in self._found or _replaces(its, mine)


def _replaces(made: TensorMeta, replaced: TensorMeta) -> bool:
    """Whether the producer of a tensor replaces that of another tensor of equal shape and dtype."""
    new, old = made.producer, replaced.producer
    if new is None or old is None:
        return False
    return set(old.origins) < set(new.origins) and facts(made) == facts(replaced)


def keys_of(tensor: TensorMeta) -> tuple[str, ...]:
    """Return the keys of a weight."""
    return tensor.param.keys if tensor.param else (tensor.name,)
