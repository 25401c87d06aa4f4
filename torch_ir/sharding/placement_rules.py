"""Sharding rules: one row per operator, from the placements of its inputs to those of its outputs.

    @shards("aten.softmax")
    def along(placed): ...            # -> Local, or None: then every rank computes the whole

A rule sees the node with its whole shapes. The placements it requests are established by collectives, or by selecting
shards of replicated tensors; the node stays the same operator, with local sizes in its attributes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch

from torch_ir.errors import ShardError
from torch_ir.ir import Dim, OpNode, TensorMeta
from torch_ir.ir.graph.operator_sets import base_name
from torch_ir.ir.graph.placements import REPLICATE, Partial, Placement, Shard, indivisible
from torch_ir.ops.schema import find_operator
from torch_ir.ops.torch_internals import OpOverload


@dataclass(frozen=True)
class Local:
    """Rule for a node on one rank: required placements of inputs (default: replicated), and those of outputs.

    `write`, if any, writes the nodes instead, given a writer and the input tensors.
    """

    inputs: Mapping[str, Placement]
    outputs: Sequence[Placement]
    attrs: Mapping[str, Any] = field(default_factory=dict)
    write: Callable[..., list[TensorMeta]] | None = None


@dataclass(frozen=True)
class PlacedNode:
    """A node with the placements of its inputs and the number of ranks."""

    node: OpNode
    places: Mapping[str, Placement]
    ranks: int
    where: str
    capacity: float | None = None  # of a module that sends tokens to experts
    is_ring: bool = False  # in a module whose attention keeps keys and values sharded

    def place(self, argument: str) -> Placement:
        """Return the placement of an argument; replicated if it is absent."""
        return self.places.get(argument, REPLICATE)

    def tensor(self, argument: str) -> TensorMeta:
        return self.node.inputs[self.node.args.index(argument)]

    def has(self, argument: str) -> bool:
        return argument in self.node.args

    def rank(self, argument: str) -> int:
        return len(self.tensor(argument).shape)

    def dim(self, argument: str = "dim", of: str = "self") -> int:
        """Return an attribute that is a dimension, as a non-negative number."""
        value = self.node.attrs[argument]
        return int(value) + self.rank(of) if value < 0 else int(value)

    def everywhere(self, place: Placement) -> Local:
        """Return the same placement for all inputs and outputs."""
        return Local(dict.fromkeys(self.node.args, place), [place] * len(self.node.outputs))

    def check_cut(self, tensor: TensorMeta, dim: int, parts: int = 1) -> None:
        """Raise ShardError unless all shards are equal."""
        size = tensor.shape[dim]
        if not isinstance(size, int):
            raise indivisible(self.where, tensor, dim, self.ranks, parts)
        if size % (self.ranks * parts):
            error = indivisible(self.where, tensor, dim, self.ranks, parts)
            raise ShardError(f"{error}; the module that computes it can be replicated, with the style 'replicate'")


Rule = Callable[[PlacedNode], "Local | None"]
RULES: dict[str, Rule] = {}


def shards(*names: str) -> Callable[[Rule], Rule]:
    """Register a rule for operators, named without overload."""

    def enter(rule: Rule) -> Rule:
        for name in names:
            if name in RULES:
                raise ShardError(f"{name!r} already has a rule")
            RULES[name] = rule
        return rule

    return enter


def rule_of(node: OpNode) -> Rule | None:
    """Return the rule for a node, by operator name, or because it is element-wise."""
    base = base_name(node.op_type)
    return RULES.get(base) or (pointwise if _is_pointwise(node.op_type) else None)


@cache
def _is_pointwise(op_type: str) -> bool:
    operator = find_operator(op_type)
    return isinstance(operator, OpOverload) and torch.Tag.pointwise in operator.tags


@shards(
    "aten.to", "aten._to_copy", "aten.clone", "aten.alias", "aten.detach", "aten.contiguous", "aten.masked_fill",
    "aten.where", "aten.fill", "aten.zeros_like", "aten.ones_like", "aten.full_like", "aten.empty_like",
    "aten.dropout", "aten.type_as", "aten.__and__", "aten.__or__", "aten.__xor__", "_c10d_functional.all_reduce",
    "_c10d_functional.wait_tensor",
)  # fmt: skip
def pointwise(placed: PlacedNode) -> Local | None:
    """Place every input like the largest sharded one; broadcast dimensions are replicated."""
    node = placed.node
    rank = max((len(tensor.shape) for tensor in node.outputs), default=0)
    pairs = ((tensor, placed.places[name]) for name, tensor in zip(node.args, node.inputs, strict=True))
    cut = [(tensor, place) for tensor, place in pairs if isinstance(place, Shard)]
    if not cut:
        return _of_terms(placed)
    lead, place = max(cut, key=lambda pair: len(pair[0].shape))
    target = place.at(place.dim + rank - len(lead.shape))
    size = node.outputs[0].shape[target.dim]
    inputs = {name: aligned(target, rank, tensor, size) for name, tensor in zip(node.args, node.inputs, strict=True)}
    return Local(inputs, [target] * len(node.outputs))


def aligned(target: Shard, rank: int, tensor: TensorMeta, size: Dim) -> Placement:
    """Return the placement of an operand that is broadcast to `rank` dimensions, sharded like `target`."""
    dim = target.dim - rank + len(tensor.shape)
    return target.at(dim) if dim >= 0 and tensor.shape[dim] == size else REPLICATE


# f(a) + f(b) = f(a + b): for all operands together, or for the one named, with the others replicated.
_ADDING = frozenset(("aten.add.Tensor", "aten.sub.Tensor"))
_SCALING = {
    "aten.mul": ("self", "other"), "aten.div": ("self",), "aten.neg": ("self",), "aten.clone": ("self",),
    "aten.alias": ("self",), "aten.detach": ("self",), "aten.contiguous": ("self",), "aten.to": ("self",),
    "aten._to_copy": ("self",), "aten.type_as": ("self",),
    "_c10d_functional.wait_tensor": ("tensor",),
}  # fmt: skip
_KEEPING_ZERO = frozenset(f"aten.{name}" for name in ("silu", "gelu", "relu", "tanh", "abs", "square", "mul"))


def _of_terms(placed: PlacedNode) -> Local | None:
    """Return the rule for operators that commute with a pending sum: adding, scaling, and zero-preserving ones."""
    node, base = placed.node, base_name(placed.node.op_type)
    places = list(placed.places.values())
    terms = [name for name, place in placed.places.items() if isinstance(place, Partial)]
    same = {place for place in places if isinstance(place, Partial)}
    if len(same) != 1 or not is_floating(node):
        return None
    place = same.pop()
    is_linear = place.reduction in ("sum", "avg") and not node.attrs.get("rounding_mode")
    has_number = any(isinstance(node.attrs.get(name), (int, float)) for name in ("self", "other"))
    if is_linear and node.op_type in _ADDING and len(terms) == len(places) and not has_number:
        return placed.everywhere(place)
    if place.support and base in _KEEPING_ZERO and len(terms) == len(places):
        return placed.everywhere(place)
    if is_linear and len(terms) == 1 and terms[0] in _SCALING.get(base, ()):
        return Local({terms[0]: place}, [place] * len(node.outputs))
    return None


def is_floating(node: OpNode) -> bool:
    """Whether all outputs are floating-point, so that a sum may be deferred."""
    return all(tensor.dtype.startswith(("float", "bfloat")) for tensor in node.outputs)


@shards("_c10d_functional.all_gather_into_tensor")
def gathered(placed: PlacedNode) -> Local | None:
    """Gather along another mesh axis: shards joined in the first dimension are sharded separately."""
    place, count = placed.place("input"), placed.node.attrs["group_size"]
    if place == Shard(0):
        return Local({"input": place}, [Shard(0, count)])
    return placed.everywhere(place) if isinstance(place, Shard) and place.dim > 0 else None


@shards("_c10d_functional.reduce_scatter_tensor")
def scattered(placed: PlacedNode) -> Local | None:
    """Scatter along another mesh axis: a part of each scattered shard."""
    place, count = placed.place("input"), placed.node.attrs["group_size"]
    if place == Shard(0, count):
        return Local({"input": place}, [Shard(0)])
    return placed.everywhere(place) if isinstance(place, Shard) and place.dim > 0 else None


@shards("aten._assert_tensor_metadata")
def asserting(placed: PlacedNode) -> Local:
    """Check dtypes and devices of shards, but not sizes and strides."""
    return Local(dict(placed.places), [], {"size": None, "stride": None})


@shards("aten.new_zeros", "aten.new_ones", "aten.new_full", "aten.new_empty")
def asking_for_dtype(placed: PlacedNode) -> Local:
    """Only the dtype and device of the input matter."""
    return Local(dict(placed.places), [REPLICATE])
