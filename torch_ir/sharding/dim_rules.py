"""Rules for operators that move, join and split dimensions, and compute nothing."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from torch_ir.ir import Dim, TensorMeta
from torch_ir.ir.graph.placements import Partial, Shard
from torch_ir.sharding.placement_rules import Ask, Local, is_floating, shards


def moved(ask: Ask, to: Sequence[int | None], attrs: dict[str, Any] | None = None) -> Local | None:
    """Each dimension of `self` goes to one of the outputs; None for one that may not be cut."""
    place = ask.place("self")
    if isinstance(place, Shard):
        dim = to[place.dim]
        if dim is None:
            return None
        return Local({"self": place}, [Shard(dim, place.parts)] * len(ask.node.outputs), attrs or {})
    if isinstance(place, Partial):
        if not is_floating(ask.node):
            return None
        after = Partial(place.reduction)  # rows may have moved
        return Local({"self": place}, [after] * len(ask.node.outputs))
    return None


@shards("aten.transpose", "aten.swapaxes", "aten.t", "aten.mT", "aten.permute", "aten.movedim")
def permuted(ask: Ask) -> Local | None:
    node, rank = ask.node, ask.rank("self")
    order = list(range(rank))
    if "dims" in node.attrs:
        order = [int(dim) % rank for dim in node.attrs["dims"]]
    elif "source" in node.attrs:
        order = _moved_order(node.attrs["source"], node.attrs["destination"], rank)
    elif rank >= 2:
        one, other = [int(value) % rank for name, value in node.attrs.items()] or [-2, -1]
        order[one], order[other] = order[other], order[one]
    return moved(ask, [order.index(dim) for dim in range(rank)])


def _moved_order(source: Any, destination: Any, rank: int) -> list[int]:
    """From where each dimension of the result of a `movedim` comes."""
    pairs = zip(*([dims] if isinstance(dims, int) else dims for dims in (source, destination)), strict=True)
    placed = {to % rank: dim % rank for dim, to in pairs}
    rest = iter(dim for dim in range(rank) if dim not in placed.values())
    return [placed[at] if at in placed else next(rest) for at in range(rank)]


@shards("aten.unsqueeze")
def unsqueezed(ask: Ask) -> Local | None:
    at = int(ask.node.attrs["dim"]) % (ask.rank("self") + 1)
    return moved(ask, [dim + (dim >= at) for dim in range(ask.rank("self"))])


@shards("aten.squeeze")
def squeezed(ask: Ask) -> Local | None:
    given = ask.node.attrs.get("dim")
    rank, shape = ask.rank("self"), ask.tensor("self").shape
    named = range(rank) if given is None else [given] if isinstance(given, int) else given
    gone = {dim % rank for dim in named if shape[dim] == 1}
    kept = [dim for dim in range(rank) if dim not in gone]
    return moved(ask, [kept.index(dim) if dim in kept else None for dim in range(rank)])


@shards("aten.expand")
def expanded(ask: Ask) -> Local | None:
    more = len(ask.node.outputs[0].shape) - ask.rank("self")
    place = ask.place("self")
    attrs = {}
    if isinstance(place, Shard):
        attrs = {"size": _cut(ask, ask.node.attrs["size"], place.dim + more)}
    return moved(ask, [dim + more for dim in range(ask.rank("self"))], attrs)


@shards("aten.select")
def selected(ask: Ask) -> Local | None:
    at = ask.dim()
    return moved(ask, [None if dim == at else dim - (dim > at) for dim in range(ask.rank("self"))])


@shards("aten.slice", "aten.narrow")
def sliced(ask: Ask) -> Local | None:
    """Along another dimension, the whole of this one, or one of the parts that are packed there."""
    node, place = ask.node, ask.place("self")
    if isinstance(place, Partial) and ask.dim() > 0:
        return ask.everywhere(place)
    if not isinstance(place, Shard) or ask.dim() != place.dim:
        return moved(ask, range(ask.rank("self")))
    size, rest = ask.tensor("self").shape[place.dim], node.outputs[0].shape[place.dim]
    if rest == size:
        return moved(
            ask, range(ask.rank("self")), {"start": 0, "end": int(rest) // ask.ranks} if "end" in node.attrs else {}
        )
    start = node.attrs.get("start") or 0
    if node.attrs.get("step", 1) != 1 or not isinstance(size, int) or not isinstance(start, int):
        return None
    start += size if start < 0 else 0
    if place.parts == 1 or rest != size // place.parts or start % rest:
        return None
    begin, length = start // ask.ranks, rest // ask.ranks
    attrs = {"start": begin, "end": begin + length} if "end" in node.attrs else {"start": begin, "length": length}
    return Local({"self": place}, [Shard(place.dim)], attrs)


@shards("aten.chunk", "aten.split", "aten.split_with_sizes", "aten.unbind", "aten.tensor_split", "aten.unsafe_split")
def split(ask: Ask) -> Local | None:
    """Along another dimension, or into the parts that are packed in this one."""
    node, place, rank = ask.node, ask.place("self"), ask.rank("self")
    at = ask.dim()
    if node.op_type.startswith("aten.unbind"):
        return moved(ask, [None if dim == at else dim - (dim > at) for dim in range(rank)])
    if isinstance(place, Partial) and at > 0:
        return ask.everywhere(place)
    if not isinstance(place, Shard) or place.dim != at:
        return moved(ask, range(rank))
    pieces = [tensor.shape[at] for tensor in node.outputs]
    if len(pieces) != place.parts or len(set(pieces)) != 1:
        return None
    attrs: dict[str, Any] = {}
    for name in ("split_size", "split_sizes"):
        if name in node.attrs:
            size = node.attrs[name]
            attrs[name] = size // ask.ranks if isinstance(size, int) else [each // ask.ranks for each in size]
    return Local({"self": place}, [Shard(at)] * len(pieces), attrs)


@shards("aten.cat", "aten.stack")
def joined(ask: Ask) -> Local | None:
    """Pieces of all tensors, along another dimension than that which they are joined in."""
    node = ask.node
    first = node.inputs[0]
    cut = [place for place in ask.places.values() if isinstance(place, Shard)]
    if not cut:
        reductions = {place.reduction for place in ask.places.values() if isinstance(place, Partial)}
        is_all = all(isinstance(place, Partial) for place in ask.places.values()) and len(reductions) == 1
        return Local(ask.places, [Partial(reductions.pop())]) if is_all else None
    is_new = node.op_type.startswith("aten.stack")
    at = int(node.attrs["dim"]) % (len(first.shape) + is_new)
    if not is_new and cut[0].dim == at:
        return None
    dim = cut[0].dim + (is_new and cut[0].dim >= at)
    return Local(dict.fromkeys(node.args, cut[0]), [Shard(dim, cut[0].parts)])


@shards("aten.view", "aten.reshape", "aten._unsafe_view", "aten.flatten", "aten.unflatten", "aten.view_copy")
def viewed(ask: Ask) -> Local | None:
    """The cut goes to the dimension that counts the same elements, such as that of heads."""
    node, before = ask.node, ask.place("self")
    if "dtype" in node.attrs:
        return None
    if not isinstance(before, Shard):
        return moved(ask, ())
    after = _carried(ask, ask.tensor("self"), before, node.outputs[0])
    if after is None:
        return None
    attrs: dict[str, Any] = {}
    for name in ("size", "shape"):
        if name in node.attrs:
            attrs[name] = _cut(ask, node.attrs[name], after.dim)
    if "sizes" in node.attrs:  # of one dimension alone
        attrs["sizes"] = _cut(ask, node.attrs["sizes"], after.dim - ask.dim())
    return Local({"self": before}, [after], attrs)


def _cut(ask: Ask, sizes: Sequence[Any], dim: int) -> list[Any]:
    """Sizes in an attribute, with one divided among the ranks; one that says -1 or nothing of it stays."""
    found = list(sizes)
    if 0 <= dim < len(found) and found[dim] != -1 and isinstance(found[dim], int):
        found[dim] //= ask.ranks
    return found


def _carried(ask: Ask, tensor: TensorMeta, place: Shard, result: TensorMeta) -> Shard | None:
    """Where a cut lies after a reshape; an error where heads, or their like, cannot be divided."""
    old, new = tensor.shape, result.shape
    first = _same(old[: place.dim], new)
    left = len(old) - place.dim - 1
    last = _same(old[::-1][:left], new[::-1][: len(new) - first])
    inner, outer = old[first : len(old) - last], new[first : len(new) - last]
    at = place.dim - first
    if not all(isinstance(size, int) for size in (*inner, *outer)):
        if any(size != 1 for size in inner[:at]) or place.parts > 1 or not outer:
            return None
        ask.check_cut(result, first)
        return Shard(first)
    before = math.prod(map(int, inner[:at])) * place.parts  # as often is a run of elements cut
    count = 1
    for index, size in enumerate(map(int, outer)):
        if count <= before < count * size and size > 1:
            parts, rest = divmod(before, count)
            if rest or size % parts:
                return None
            ask.check_cut(result, first + index, parts)
            return Shard(first + index, parts)
        count *= size
    return None


def _same(old: Sequence[Dim], new: Sequence[Dim]) -> int:
    """How many sizes from the first are equal."""
    count = 0
    while count < min(len(old), len(new)) and old[count] == new[count]:
        count += 1
    return count


@shards("aten.repeat_interleave", "aten.roll", "aten.flip")
def along_one(ask: Ask) -> Local | None:
    """Other dimensions may be cut."""
    place = ask.place("self")
    named = ask.node.attrs.get("dim", ask.node.attrs.get("dims"))
    dims = [named] if isinstance(named, int) else named or range(ask.rank("self"))
    cut = isinstance(place, Shard) and place.dim not in {dim % ask.rank("self") for dim in dims}
    return moved(ask, range(ask.rank("self"))) if cut and not ask.has("repeats") else None


@shards("aten.constant_pad_nd", "aten.pad")
def padded(ask: Ask) -> Local | None:
    place = ask.place("self")
    touched = len(ask.node.attrs["pad"]) // 2
    if isinstance(place, Shard) and place.dim < ask.rank("self") - touched:
        return moved(ask, range(ask.rank("self")))
    return None
