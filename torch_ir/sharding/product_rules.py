"""Sharding rules for contractions: column shards of a weight yield column shards, row shards yield partial sums."""

from __future__ import annotations

from torch_ir.ir import TensorMeta
from torch_ir.ir.graph.placements import PARTIAL, REPLICATE, Partial, Placement, Shard
from torch_ir.sharding.placement_rules import Local, PlacedNode, shards
from torch_ir.sharding.rank_writer import NEW, Writer


@shards("aten.linear")
def linear(placed: PlacedNode) -> Local | None:
    """input [..., k], weight [n, k], bias [n]"""
    last = placed.rank("input") - 1
    given, weight = placed.place("input"), placed.place("weight")
    if isinstance(weight, Shard) and weight.dim == 0:
        return Local({"weight": weight, "bias": weight}, [weight.at(last)])
    if isinstance(weight, Shard):
        # the first rank alone adds the bias
        return Local({"input": weight.at(last), "weight": weight, "bias": PARTIAL}, [PARTIAL])
    if isinstance(given, Shard) and given.dim < last:
        return Local({"input": given}, [given])
    return Local({"input": given}, [PARTIAL]) if _is_sum(given) and not placed.has("bias") else None


@shards("aten.mm", "aten.addmm", "aten.bmm", "aten.matmul", "aten.baddbmm")
def matmul(placed: PlacedNode) -> Local | None:
    """left [..., m, k], right [..., k, n], and an optional addend"""
    addend = "self" if "addbmm" in placed.node.op_type or "addmm" in placed.node.op_type else ""
    names = [name for name in placed.node.args if name != addend]
    left, right = names[0], names[-1]
    rank = len(placed.node.outputs[0].shape)
    if placed.rank(left) < 2 or placed.rank(right) < 2 or rank < 2:
        return None
    found = _of_matrices(placed, left, right, rank)
    if found is None:
        return None
    one, other, result = found
    inputs: dict[str, Placement] = {left: one, right: other}
    if addend:
        inputs[addend] = added(placed, addend, result, rank)
    return Local(inputs, [result])


def _of_matrices(placed: PlacedNode, left: str, right: str, rank: int) -> tuple[Placement, Placement, Placement] | None:
    """Return the placements of two (batches of) matrices and of their product."""
    one, other = placed.place(left), placed.place(right)
    rows, inner = placed.rank(left) - 2, placed.rank(left) - 1
    inside, columns = placed.rank(right) - 2, placed.rank(right) - 1
    if isinstance(other, Shard):
        if other.dim == columns:
            return REPLICATE, other, other.at(rank - 1)
        if other.dim == inside:
            return other.at(inner), other, PARTIAL
    if isinstance(one, Shard):
        if one.dim == inner:
            return one, one.at(inside), PARTIAL
        if one.dim == rows:
            return one, REPLICATE, one.at(rank - 2)
    for name, place in ((left, one), (right, other)):  # sharded batches
        if isinstance(place, Shard):
            target = place.at(place.dim + rank - placed.rank(name))
            return _batch(placed, left, target, rank), _batch(placed, right, target, rank), target
    if _is_sum(one) and other == REPLICATE:
        return one, other, PARTIAL
    return (one, other, PARTIAL) if one == REPLICATE and _is_sum(other) else None


def _batch(placed: PlacedNode, name: str, target: Shard, rank: int) -> Placement:
    dim = target.dim - rank + placed.rank(name)
    is_cut = 0 <= dim < placed.rank(name) - 2 and placed.tensor(name).shape[dim] != 1
    return target.at(dim) if is_cut else REPLICATE


def added(placed: PlacedNode, name: str, result: Placement, rank: int) -> Placement:
    """Return the placement of the addend of a product."""
    if not isinstance(result, Shard):
        return result
    dim = result.dim - rank + placed.rank(name)
    return result.at(dim) if dim >= 0 and placed.tensor(name).shape[dim] != 1 else REPLICATE


def _is_sum(place: Placement) -> bool:
    return isinstance(place, Partial) and place.reduction == "sum"


@shards("aten._grouped_mm", "transformers.grouped_mm_fallback")
def grouped(placed: PlacedNode) -> Local | None:
    """input [t, k] in groups of rows that end at `offs`, weight [groups, k, n]"""
    given, weight = placed.node.args[:2]
    if placed.rank(given) != 2 or placed.rank(weight) != 3 or not placed.has("offs") or placed.has("bias"):
        return None
    one, other = placed.place(given), placed.place(weight)
    if isinstance(other, Shard):
        if other.dim == 2:
            return Local({weight: other}, [other.at(1)])
        if other.dim == 1:
            return Local({given: other.at(1), weight: other}, [PARTIAL])
        support = Partial(support=placed.tensor("offs").name)
        return Local({given: one if one == support else REPLICATE, weight: other}, [support], write=_own_groups)
    return Local({given: one}, [PARTIAL]) if _is_sum(one) and other == REPLICATE else None


def _own_groups(writer: Writer, inputs: dict[str, TensorMeta], placed: PlacedNode) -> list[TensorMeta]:
    """Rotate the rows of the rank's groups to the front, multiply, and rotate back; other rows are zero."""
    given, weight, ends = inputs[placed.node.args[0]], inputs[placed.node.args[1]], inputs["offs"]
    rows, groups, place = given.shape[0], int(weight.shape[0]), placed.place(placed.node.args[1])
    assert isinstance(place, Shard)
    own = writer.pieces(ends, place)
    first = writer.first_of(groups, int(ends.shape[0]))
    whole = writer.add("aten.constant_pad_nd.default", {"self": ends}, {"pad": [1, 0], "value": 0})
    begin = writer.add("aten.index_select.default", {"self": whole, "index": first}, {"dim": 0})
    stop = writer.add("aten.sub.Tensor", {"self": own, "other": begin}, {"alpha": 1})
    count = writer.add("aten.arange.default", {}, {"end": rows, **NEW})
    shifted = writer.add("aten.add.Tensor", {"self": count, "other": begin}, {"alpha": 1})
    there = writer.add("aten.remainder.Scalar", {"self": shifted}, {"other": rows})
    front = writer.add("aten.index.Tensor", {"self": given, "indices.0": there}, {})
    made = writer.add(placed.node.op_type, {**inputs, placed.node.args[0]: front, "offs": stop}, placed.node.attrs)
    last = writer.add("aten.slice.Tensor", {"self": stop}, {"dim": 0, "start": -1, "end": 1 << 62, "step": 1})
    is_other = writer.add("aten.ge.Tensor", {"self": count, "other": last}, {})
    mask = writer.add("aten.unsqueeze.default", {"self": is_other}, {"dim": -1})
    clean = writer.add("aten.masked_fill.Scalar", {"self": made, "mask": mask}, {"value": 0})
    unshifted = writer.add("aten.sub.Tensor", {"self": count, "other": begin}, {"alpha": 1})
    back = writer.add("aten.remainder.Scalar", {"self": unshifted}, {"other": rows})
    return [writer.add("aten.index.Tensor", {"self": clean, "indices.0": back}, {})]
