"""What an operator needs to run on pieces: one row per operator, from where its inputs lie to where its outputs do.

    @shards("aten.softmax")
    def along(ask): ...            # -> Local, or None: then every rank computes the whole

A rule sees the node with its whole shapes. What it asks for is brought about by collectives, or by taking pieces of
what every rank holds; the node itself stays the same operator, with sizes of pieces in its attributes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch

from torch_ir.errors import ShardError
from torch_ir.ir import Dim, OpNode, TensorMeta
from torch_ir.ir.graph.placements import REPLICATE, Partial, Placement, Shard, indivisible
from torch_ir.ops.schema import find_operator
from torch_ir.ops.torch_internals import OpOverload


@dataclass(frozen=True)
class Local:
    """How a node runs on one rank: where inputs must lie, those that are not named whole, and where outputs do.

    `write`, if any, writes the nodes instead: it is given a writer and the tensors of the inputs.
    """

    inputs: Mapping[str, Placement]
    outputs: Sequence[Placement]
    attrs: Mapping[str, Any] = field(default_factory=dict)
    write: Callable[..., list[TensorMeta]] | None = None


@dataclass(frozen=True)
class Ask:
    """A node, where each of its inputs lies, and how many ranks there are."""

    node: OpNode
    places: Mapping[str, Placement]
    ranks: int
    where: str

    def place(self, argument: str) -> Placement:
        """Where an argument lies; one that is absent is in nobody's way."""
        return self.places.get(argument, REPLICATE)

    def tensor(self, argument: str) -> TensorMeta:
        return self.node.inputs[self.node.args.index(argument)]

    def has(self, argument: str) -> bool:
        return argument in self.node.args

    def rank(self, argument: str) -> int:
        return len(self.tensor(argument).shape)

    def dim(self, argument: str = "dim", of: str = "self") -> int:
        """An attribute that counts dimensions, from the first."""
        value = self.node.attrs[argument]
        return int(value) + self.rank(of) if value < 0 else int(value)

    def everywhere(self, place: Placement) -> Local:
        """The same placement for all inputs and outputs."""
        return Local(dict.fromkeys(self.node.args, place), [place] * len(self.node.outputs))

    def check_cut(self, tensor: TensorMeta, dim: int, parts: int = 1) -> None:
        """An error unless pieces are equal; heads are made by modules, which may stay whole."""
        size = tensor.shape[dim]
        if not isinstance(size, int):
            raise indivisible(self.where, tensor, dim, self.ranks, parts)
        if size % (self.ranks * parts):
            error = indivisible(self.where, tensor, dim, self.ranks, parts)
            raise ShardError(f"{error}; what makes it may stay whole on each, as 'replicate'")


Rule = Callable[[Ask], "Local | None"]
RULES: dict[str, Rule] = {}


def shards(*names: str) -> Callable[[Rule], Rule]:
    """Enter a rule for operators, named without overload."""

    def enter(rule: Rule) -> Rule:
        for name in names:
            if name in RULES:
                raise ShardError(f"there is a rule for {name!r} already")
            RULES[name] = rule
        return rule

    return enter


def rule_of(node: OpNode) -> Rule | None:
    """The rule for a node, by the name of its operator, or because it treats every element alone."""
    base = node.op_type.rpartition(".")[0]
    return RULES.get(base) or (pointwise if _is_pointwise(node.op_type) else None)


@cache
def _is_pointwise(op_type: str) -> bool:
    operator = find_operator(op_type)
    return isinstance(operator, OpOverload) and torch.Tag.pointwise in operator.tags


@shards(
    "aten.to", "aten._to_copy", "aten.clone", "aten.alias", "aten.detach", "aten.contiguous", "aten.masked_fill",
    "aten.where", "aten.zeros_like", "aten.ones_like", "aten.full_like", "aten.empty_like", "aten.dropout",
    "aten.type_as", "aten.__and__", "aten.__or__", "aten.__xor__", "_c10d_functional.all_reduce",
    "_c10d_functional.wait_tensor",
)  # fmt: skip
def pointwise(ask: Ask) -> Local | None:
    """Every input lies as the largest that is cut; where one is broadcast, every rank needs all of it."""
    node = ask.node
    rank = max(len(tensor.shape) for tensor in node.outputs)
    cut = [(tensor, place) for tensor, place in _pairs(ask) if isinstance(place, Shard)]
    if not cut:
        return _of_terms(ask)
    lead, place = max(cut, key=lambda pair: len(pair[0].shape))
    target = Shard(place.dim + rank - len(lead.shape), place.parts)
    size = node.outputs[0].shape[target.dim]
    inputs = {name: aligned(target, rank, tensor, size) for name, tensor in zip(node.args, node.inputs, strict=True)}
    return Local(inputs, [target] * len(node.outputs))


def aligned(target: Shard, rank: int, tensor: TensorMeta, size: Dim) -> Placement:
    """Where an operand lies that is broadcast with others to `rank` dimensions, cut as `target` says."""
    dim = target.dim - rank + len(tensor.shape)
    return Shard(dim, target.parts) if dim >= 0 and tensor.shape[dim] == size else REPLICATE


def _pairs(ask: Ask) -> list[tuple[TensorMeta, Placement]]:
    return [(tensor, ask.places[name]) for name, tensor in zip(ask.node.args, ask.node.inputs, strict=True)]


# f(a) + f(b) = f(a + b): of all operands together, or of the one named, with the others whole.
_ADDING = frozenset(("aten.add.Tensor", "aten.sub.Tensor"))
_SCALING = {
    "aten.mul": ("self", "other"), "aten.div": ("self",), "aten.neg": ("self",), "aten.clone": ("self",),
    "aten.alias": ("self",), "aten.detach": ("self",), "aten.contiguous": ("self",), "aten.to": ("self",),
    "aten._to_copy": ("self",), "aten.type_as": ("self",),
    "_c10d_functional.wait_tensor": ("tensor",),
}  # fmt: skip
_KEEPING_ZERO = frozenset(f"aten.{name}" for name in ("silu", "gelu", "relu", "tanh", "abs", "square", "mul"))


def _of_terms(ask: Ask) -> Local | None:
    """What may wait with a sum: adding terms, scaling them, and what keeps zeros of terms that do not overlap."""
    node, base = ask.node, ask.node.op_type.rpartition(".")[0]
    places = list(ask.places.values())
    terms = [name for name, place in ask.places.items() if isinstance(place, Partial)]
    same = {place for place in places if isinstance(place, Partial)}
    if len(same) != 1 or not is_floating(node):
        return None
    place = same.pop()
    has_number = any(isinstance(node.attrs.get(name), (int, float)) for name in ("self", "other"))
    if node.op_type in _ADDING and len(terms) == len(places) and not has_number:
        return ask.everywhere(place)
    if place.support and base in _KEEPING_ZERO and len(terms) == len(places):
        return ask.everywhere(place)
    if place.reduction in ("sum", "avg") and len(terms) == 1 and terms[0] in _SCALING.get(base, ()):
        return Local({terms[0]: place}, [place] * len(node.outputs))
    return None


def is_floating(node: OpNode) -> bool:
    """Whether a node gives nothing but numbers with a fraction, which sums may be taken of later."""
    return all(tensor.dtype.startswith(("float", "bfloat")) for tensor in node.outputs)


@shards("_c10d_functional.all_gather_into_tensor")
def gathered(ask: Ask) -> Local | None:
    """Of another axis: pieces that it joins in the first dimension are cut each by itself."""
    place, count = ask.place("input"), ask.node.attrs["group_size"]
    if place == Shard(0):
        return Local({"input": place}, [Shard(0, count)])
    return ask.everywhere(place) if isinstance(place, Shard) and place.dim > 0 else None


@shards("_c10d_functional.reduce_scatter_tensor")
def scattered(ask: Ask) -> Local | None:
    """Of another axis: of each piece that it gives away, a part."""
    place, count = ask.place("input"), ask.node.attrs["group_size"]
    if place == Shard(0, count):
        return Local({"input": place}, [Shard(0)])
    return ask.everywhere(place) if isinstance(place, Shard) and place.dim > 0 else None


@shards("aten._assert_tensor_metadata")
def asserting(ask: Ask) -> Local:
    """Dtypes and devices are those of pieces, sizes and strides are not."""
    return Local(dict(ask.places), [], {"size": None, "stride": None})


@shards("aten.new_zeros", "aten.new_ones", "aten.new_full", "aten.new_empty")
def asking_for_dtype(ask: Ask) -> Local:
    """What is read is only asked for its dtype and device."""
    return Local(dict(ask.places), [REPLICATE])
