"""Placement of a tensor on the ranks of one mesh axis: replicated, sharded along a dimension, or partial sums."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Union

from torch_ir.errors import ShardError
from torch_ir.ir.graph.tensor import TensorMeta
from torch_ir.ir.json.json_fields import Dim

REDUCTIONS = ("sum", "avg", "min", "max", "product")
PLACEMENT = re.compile(  # as in files, except that files have no negative dimensions
    r"replicate|shard\((?P<dim>-?\d{1,3})(?:, (?P<parts>[1-9]\d{0,8}))?\)"
    rf"|partial\((?P<reduction>{'|'.join(REDUCTIONS)})\)"
    r"|padded\((?P<size>[1-9]\d{0,17})(?:, (?P<at>\d{1,3})(?:, (?P<unit>[1-9]\d{0,17}))?)?\)",
    re.ASCII,
)


@dataclass(frozen=True)
class Replicate:
    """Every rank holds the whole tensor."""

    def __str__(self) -> str:
        return "replicate"


@dataclass(frozen=True)
class Shard:
    """Every rank holds an equal piece along `dim`; if `parts` tensors are packed there, an equal piece of each."""

    dim: int
    parts: int = 1

    def at(self, dim: int) -> Shard:
        """Return the same sharding of another dimension."""
        return replace(self, dim=dim)

    def own(self, size: int, ranks: int) -> int:
        """Return the size of each rank's piece of a dimension."""
        return size // ranks

    def __str__(self) -> str:
        return f"shard({self.dim})" if self.parts == 1 else f"shard({self.dim}, {self.parts})"


@dataclass(frozen=True)
class Padded(Shard):
    """Pieces of a dimension of `size` that the ranks do not divide: as `torch.chunk` cuts them, in multiples of `unit`.

    All have the size of the first, which is the largest. No result depends on what is behind shorter ones; of a weight,
    zeros are.
    """

    size: int = 0
    unit: int = 1  # 64 for heads of 64 numbers each

    def own(self, size: int, ranks: int) -> int:
        return -(-size // self.unit // ranks) * self.unit

    def __str__(self) -> str:
        numbers = [self.size, self.dim, self.unit]
        kept = 3 if self.unit > 1 else 2 if self.dim else 1
        return f"padded({', '.join(map(str, numbers[:kept]))})"


@dataclass(frozen=True)
class Partial:
    """Every rank holds a term; their sum, or other reduction, is the value.

    Terms with the same `support` are non-zero only in the rows that belong to the rank, such as those of its experts.
    """

    reduction: str = "sum"
    support: str = ""

    def is_of(self, other: Placement) -> bool:
        """Whether terms of this kind can replace those of another, ignoring where they are zero."""
        return isinstance(other, Partial) and self.reduction == other.reduction and self.support in ("", other.support)

    def __str__(self) -> str:
        return f"partial({self.reduction})"


@dataclass(frozen=True)
class Routed:
    """Rows of tokens sorted by expert on each rank: the rank's own tokens, or those of all ranks for its experts.

    No whole tensor has the rows in this order, so files do not name this placement. `kind` is one of those in
    `sharding/expert_rules.py`, `home` is where the tokens are before they are sorted, `order` the name of the node that
    sorts them, and `ends` that of the tensor by which they are sent.
    """

    kind: str
    home: Shard
    order: str
    rows: int | None = None  # on a rank; None where dimension 0 is not that of rows
    per_token: int = 1  # rows that have the same position
    ends: str = ""

    def returned(self, rows: int) -> Routed:
        """Return the placement of rows that come back from experts."""
        return replace(self, kind="rows", rows=rows, ends="")

    def __str__(self) -> str:
        return f"routed {self.kind}"


Placement = Union[Replicate, Shard, Partial, Routed]
REPLICATE = Replicate()
PARTIAL = Partial()


def rank_key(axis: str) -> str:
    """Return the key of the weight that holds a rank's index along an axis: `mesh.tp`."""
    return f"mesh.{axis}"


def stored_placement(text: str) -> Placement:
    """Parse the placement of a tensor in a file."""
    found = PLACEMENT.fullmatch(text)
    if not found or not found["size"]:
        return parse(text)
    return Padded(int(found["at"] or 0), size=int(found["size"]), unit=int(found["unit"] or 1))


def parse(text: str) -> Placement:
    """Parse a placement that a plan may ask for, as `shard(1)`; it may be negative, and spaces are optional."""
    found = PLACEMENT.fullmatch(", ".join(part.strip() for part in text.split(",")))
    if not found or found["size"]:
        raise ShardError(
            f"invalid placement {text!r:.80}; expected replicate, shard(DIM), shard(DIM, PARTS) or partial(sum)"
        )
    if found["dim"]:
        return Shard(int(found["dim"]), int(found["parts"] or 1))
    return Partial(found["reduction"]) if found["reduction"] else REPLICATE


def plain(place: Placement) -> Placement:
    """Return the placement that a function takes or returns: without `support`, and never routed."""
    if isinstance(place, Routed):
        return REPLICATE
    return Partial(place.reduction) if isinstance(place, Partial) else place


def counted(place: Placement, rank: int) -> Placement:
    """Return the placement with a non-negative dimension."""
    return replace(place, dim=place.dim + rank) if isinstance(place, Shard) and place.dim < 0 else place


def local_shape(tensor: TensorMeta, place: Placement, ranks: int, where: str) -> tuple[Dim, ...]:
    """Return the shape of one rank's piece; a ShardError names the place if the pieces would not be equal."""
    if isinstance(place, Routed) and place.rows is not None:
        return (place.rows, *tensor.shape[1:])
    if not isinstance(place, Shard):
        return tensor.shape
    if not 0 <= place.dim < len(tensor.shape):
        raise ShardError(f"{where}: {tensor.name!r} of shape {list(tensor.shape)} has no dimension {place.dim} to cut")
    size = tensor.shape[place.dim]
    is_divided = isinstance(size, int) and size % (ranks * place.parts) == 0
    if not is_divided and not (isinstance(place, Padded) and size == place.size):
        raise indivisible(where, tensor, place.dim, ranks, place.parts)
    return (*tensor.shape[: place.dim], place.own(int(size), ranks), *tensor.shape[place.dim + 1 :])


def first_divisible(tensor: TensorMeta, ranks: int) -> Placement:
    """Return the sharding along the first dimension that can be divided among the ranks; replicated if none can."""
    dims = (dim for dim, size in enumerate(tensor.shape) if isinstance(size, int) and size % ranks == 0)
    first = next(dims, None)
    return REPLICATE if first is None else Shard(first)


def indivisible(where: str, tensor: TensorMeta, dim: int, ranks: int, parts: int) -> ShardError:
    """Return the error for a size that cannot be split into equal pieces."""
    size = tensor.shape[dim]
    message = f"{where}: dimension {dim} of {tensor.name!r}, {list(tensor.shape)}, has size {size}"
    if not isinstance(size, int):
        return ShardError(f"{message}, which is open; specialize the graph before it is cut there")
    packed = f"{parts} packed parts, each for " if parts > 1 else ""
    return ShardError(f"{message}, which cannot be divided among {packed}{ranks} ranks")
