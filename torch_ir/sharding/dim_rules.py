"""Sharding rules for operators that move, join and split dimensions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from torch_ir.analysis.shapes.permutations import ORDERS, order_of
from torch_ir.ir import Dim, TensorMeta
from torch_ir.ir.graph.placements import Padded, Partial, Shard
from torch_ir.sharding.placement_rules import Local, PlacedNode, is_floating, shards


def moved(placed: PlacedNode, to: Sequence[int | None], attrs: dict[str, Any] | None = None) -> Local | None:
    """Return the rule for `self` whose dimensions map to those in `to`; None for one that must not be sharded."""
    place = placed.place("self")
    if isinstance(place, Shard):
        dim = to[place.dim]
        if dim is None:
            return None
        return Local({"self": place}, [place.at(dim)] * len(placed.node.outputs), attrs or {})
    if isinstance(place, Partial):
        if not is_floating(placed.node):
            return None
        after = Partial(place.reduction)  # without `support`: rows may have moved
        return Local({"self": place}, [after] * len(placed.node.outputs))
    return None


@shards(*dict.fromkeys(name.rpartition(".")[0] for name in ORDERS))
def permuted(placed: PlacedNode) -> Local | None:
    order = order_of(placed.node)
    return moved(placed, [order.index(dim) for dim in range(len(order))])


@shards("aten.unsqueeze")
def unsqueezed(placed: PlacedNode) -> Local | None:
    at = int(placed.node.attrs["dim"]) % (placed.rank("self") + 1)
    return moved(placed, [dim + (dim >= at) for dim in range(placed.rank("self"))])


@shards("aten.squeeze")
def squeezed(placed: PlacedNode) -> Local | None:
    given, place = placed.node.attrs.get("dim"), placed.place("self")
    rank, shape = placed.rank("self"), placed.tensor("self").shape
    if given is None and isinstance(place, Shard) and shape[place.dim] == placed.ranks:
        return None  # pieces of size 1 would be squeezed, too
    named = range(rank) if given is None else [given] if isinstance(given, int) else given
    gone = {dim % rank for dim in named if shape[dim] == 1}
    kept = [dim for dim in range(rank) if dim not in gone]
    return moved(placed, [kept.index(dim) if dim in kept else None for dim in range(rank)])


@shards("aten.expand")
def expanded(placed: PlacedNode) -> Local | None:
    more = len(placed.node.outputs[0].shape) - placed.rank("self")
    place = placed.place("self")
    attrs = {}
    if isinstance(place, Shard):
        attrs = {"size": _cut(placed, placed.node.attrs["size"], place.at(place.dim + more))}
    return moved(placed, [dim + more for dim in range(placed.rank("self"))], attrs)


@shards("aten.select")
def selected(placed: PlacedNode) -> Local | None:
    at = placed.dim()
    return moved(placed, [None if dim == at else dim - (dim > at) for dim in range(placed.rank("self"))])


@shards("aten.slice", "aten.narrow")
def sliced(placed: PlacedNode) -> Local | None:
    """Slice along another dimension, the whole of this one, or one of the parts packed in it."""
    node, place = placed.node, placed.place("self")
    if isinstance(place, Partial) and placed.dim() > 0:
        return placed.everywhere(place)
    if not isinstance(place, Shard) or placed.dim() != place.dim:
        return moved(placed, range(placed.rank("self")))
    size, rest = placed.tensor("self").shape[place.dim], node.outputs[0].shape[place.dim]
    if rest == size:
        return moved(
            placed,
            range(placed.rank("self")),
            {"start": 0, "end": place.own(int(rest), placed.ranks)} if "end" in node.attrs else {},
        )
    start = node.attrs.get("start") or 0
    if node.attrs.get("step", 1) != 1 or not isinstance(size, int) or not isinstance(start, int):
        return None
    start += size if start < 0 else 0
    if place.parts == 1 or rest != size // place.parts or start % rest:
        return None
    begin, length = start // placed.ranks, rest // placed.ranks
    attrs = {"start": begin, "end": begin + length} if "end" in node.attrs else {"start": begin, "length": length}
    return Local({"self": place}, [Shard(place.dim)], attrs)


@shards("aten.chunk", "aten.split", "aten.split_with_sizes", "aten.unbind", "aten.tensor_split", "aten.unsafe_split")
def split(placed: PlacedNode) -> Local | None:
    """Split along another dimension, or into the parts packed in this one."""
    node, place, rank = placed.node, placed.place("self"), placed.rank("self")
    at = placed.dim()
    if node.op_type.startswith("aten.unbind"):
        return moved(placed, [None if dim == at else dim - (dim > at) for dim in range(rank)])
    if isinstance(place, Partial) and at > 0:
        return placed.everywhere(place)
    if not isinstance(place, Shard) or place.dim != at:
        return moved(placed, range(rank))
    pieces = [tensor.shape[at] for tensor in node.outputs]
    if len(pieces) != place.parts or len(set(pieces)) != 1:
        return None
    attrs: dict[str, Any] = {}
    for name in ("split_size", "split_sizes"):
        if name in node.attrs:
            size = node.attrs[name]
            attrs[name] = size // placed.ranks if isinstance(size, int) else [each // placed.ranks for each in size]
    return Local({"self": place}, [Shard(at)] * len(pieces), attrs)


@shards("aten.cat", "aten.stack")
def joined(placed: PlacedNode) -> Local | None:
    """Concatenate shards of all tensors along another dimension than the sharded one."""
    node = placed.node
    first = node.inputs[0]
    cut = [place for place in placed.places.values() if isinstance(place, Shard)]
    if not cut:
        reductions = {place.reduction for place in placed.places.values() if isinstance(place, Partial)}
        is_all = all(isinstance(place, Partial) for place in placed.places.values()) and len(reductions) == 1
        return Local(placed.places, [Partial(reductions.pop())]) if is_all else None
    is_new = node.op_type.startswith("aten.stack")
    at = int(node.attrs["dim"]) % (len(first.shape) + is_new)
    if not is_new and cut[0].dim == at:
        return None
    dim = cut[0].dim + (is_new and cut[0].dim >= at)
    return Local(dict.fromkeys(node.args, cut[0]), [cut[0].at(dim)])


@shards("aten.view", "aten.reshape", "aten._unsafe_view", "aten.flatten", "aten.unflatten", "aten.view_copy")
def viewed(placed: PlacedNode) -> Local | None:
    """Move the sharding to the dimension with the same elements, such as that of heads."""
    node, before = placed.node, placed.place("self")
    if "dtype" in node.attrs:
        return None
    if not isinstance(before, Shard):
        return moved(placed, ())
    after = _carried(placed, placed.tensor("self"), before, node.outputs[0])
    if after is None:
        return None
    attrs: dict[str, Any] = {}
    for name in ("size", "shape"):
        if name in node.attrs:
            attrs[name] = _cut(placed, node.attrs[name], after)
    if "sizes" in node.attrs:  # of one dimension
        attrs["sizes"] = _cut(placed, node.attrs["sizes"], after.at(after.dim - placed.dim()))
    return Local({"self": before}, [after], attrs)


def _cut(placed: PlacedNode, sizes: Sequence[Any], place: Shard) -> list[Any]:
    """Return sizes of an attribute with that of a rank's piece; -1 and symbolic sizes stay."""
    found, dim = list(sizes), place.dim
    if 0 <= dim < len(found) and found[dim] != -1 and isinstance(found[dim], int):
        found[dim] = place.own(found[dim], placed.ranks)
    return found


def _carried(placed: PlacedNode, tensor: TensorMeta, place: Shard, result: TensorMeta) -> Shard | None:
    """Return the sharding after a reshape; raise ShardError if heads or similar cannot be divided evenly."""
    old, new = tensor.shape, result.shape
    first = _same(old[: place.dim], new)
    left = len(old) - place.dim - 1
    last = _same(old[::-1][:left], new[::-1][: len(new) - first])
    inner, outer = old[first : len(old) - last], new[first : len(new) - last]
    at = place.dim - first
    if not all(isinstance(size, int) for size in (*inner, *outer)):
        if any(size != 1 for size in inner[:at]) or place != Shard(place.dim) or not outer:
            return None
        placed.check_cut(result, first)
        return Shard(first)
    if isinstance(place, Padded):
        return _carried_units(place, at, list(map(int, inner)), list(map(int, outer)))
    before = math.prod(map(int, inner[:at])) * place.parts  # number of contiguous runs that are divided
    count = 1
    for index, size in enumerate(map(int, outer)):
        if count <= before < count * size and size > 1:
            parts, rest = divmod(before, count)
            if rest or size % parts:
                return None
            placed.check_cut(result, first + index, parts)
            return Shard(first + index, parts)
        count *= size
    return None


def _carried_units(place: Padded, at: int, inner: Sequence[int], outer: Sequence[int]) -> Padded | None:
    """Return the padded pieces of dimensions `outer`, which are `inner` with its dimension `at` padded, reshaped."""
    before, elements = math.prod(inner[:at]), place.unit * math.prod(inner[at + 1 :])  # of one unit
    for index, size in enumerate(outer):
        rest = math.prod(outer[index + 1 :])
        if size > 1 and math.prod(outer[:index]) == before and elements % rest == 0:
            return Padded(place.dim - at + index, size=size, unit=elements // rest)
    return None


def _same(old: Sequence[Dim], new: Sequence[Dim]) -> int:
    """Return the length of the common prefix."""
    count = 0
    while count < min(len(old), len(new)) and old[count] == new[count]:
        count += 1
    return count


@shards("aten.repeat_interleave", "aten.roll", "aten.flip")
def along_one(placed: PlacedNode) -> Local | None:
    """Other dimensions may be sharded."""
    place = placed.place("self")
    named = placed.node.attrs.get("dim", placed.node.attrs.get("dims"))
    dims = [named] if isinstance(named, int) else named or range(placed.rank("self"))
    cut = isinstance(place, Shard) and place.dim not in {dim % placed.rank("self") for dim in dims}
    return moved(placed, range(placed.rank("self"))) if cut and not placed.has("repeats") else None


@shards("aten.constant_pad_nd", "aten.pad")
def padded(placed: PlacedNode) -> Local | None:
    place = placed.place("self")
    touched = len(placed.node.attrs["pad"]) // 2
    if isinstance(place, Shard) and place.dim < placed.rank("self") - touched:
        return moved(placed, range(placed.rank("self")))
    return None
