"""Sharding rules for losses: the mean over a sharded batch is that over the whole batch, not the mean of means."""

from __future__ import annotations

from torch_ir.ir import TensorMeta
from torch_ir.ir.graph.placements import PARTIAL, REPLICATE, Partial, Placement, Shard
from torch_ir.sharding.placement_rules import Local, PlacedNode, pointwise, shards
from torch_ir.sharding.rank_writer import Writer

_NONE, _MEAN, _SUM = range(3)  # values of `reduction`
_LOSSES = ("mse_loss", "smooth_l1_loss", "huber_loss", "binary_cross_entropy", "soft_margin_loss")


@shards("aten.nll_loss_forward", "aten.nll_loss2d_forward")
def likelihood(placed: PlacedNode) -> Local | None:
    """self [n, classes], target [n] -> the loss, and the weight of all rows that are not ignored"""
    place, reduction = placed.place("self"), placed.node.attrs["reduction"]
    if not isinstance(place, Shard) or place.dim != 0 or placed.rank("self") < 2 or placed.has("weight"):
        return None
    inputs: dict[str, Placement] = {"self": place, "target": place}
    if reduction == _NONE:
        return Local(inputs, [place, REPLICATE])
    return Local(inputs, [PARTIAL, REPLICATE], write=_own_rows)


def _own_rows(writer: Writer, inputs: dict[str, TensorMeta], placed: PlacedNode) -> list[TensorMeta]:
    """Sum the loss over the rank's rows, and divide by the number of rows of all ranks."""
    attrs = {**placed.node.attrs, "reduction": _SUM}
    total, count = writer.add_several(placed.node.op_type, inputs, attrs)
    counts = writer.moved(count, PARTIAL, REPLICATE)
    if placed.node.attrs["reduction"] == _MEAN:
        total = writer.add("aten.div.Tensor", {"self": total, "other": counts}, {})
    return [total, counts]


@shards("aten.nll_loss_backward", "aten.nll_loss2d_backward")
def of_likelihood(placed: PlacedNode) -> Local | None:
    """Row by row, given the number of rows of all ranks."""
    place = next((placed.place(name) for name in ("self", "target") if isinstance(placed.place(name), Shard)), None)
    if not isinstance(place, Shard) or place.dim != 0 or placed.rank("self") < 2 or placed.has("weight"):
        return None
    inputs: dict[str, Placement] = {"self": place, "target": place}
    if placed.node.attrs["reduction"] == _NONE:
        inputs["grad_output"] = place
    return Local(inputs, [place])


@shards("aten.binary_cross_entropy_with_logits", *(f"aten.{name}" for name in _LOSSES))
def loss(placed: PlacedNode) -> Local | None:
    """Equal shards: the mean of their means is the mean, and the sum of their sums the sum."""
    if placed.node.attrs["reduction"] == _NONE:
        return pointwise(placed)
    place = _same_place(placed, "self", "target")
    kind = Partial("avg") if placed.node.attrs["reduction"] == _MEAN else PARTIAL
    return None if place is None else Local(dict.fromkeys(placed.node.args, place), [kind])


@shards(*(f"aten.{name}_backward" for name in _LOSSES))
def of_loss(placed: PlacedNode) -> Local | None:
    """Element by element; an operator that takes a mean divides by the number of elements it is given."""
    if placed.node.attrs["reduction"] == _NONE:
        return pointwise(placed)
    place = _same_place(placed, "self", "target")
    if place is None:
        return None
    inputs: dict[str, Placement] = {name: place for name in placed.node.args if name != "grad_output"}
    is_mean = placed.node.attrs["reduction"] == _MEAN
    return Local(inputs, [place], write=_of_whole_mean if is_mean else None)


def _of_whole_mean(writer: Writer, inputs: dict[str, TensorMeta], placed: PlacedNode) -> list[TensorMeta]:
    made = writer.add(placed.node.op_type, inputs, placed.node.attrs)
    return [writer.add("aten.div.Scalar", {"self": made}, {"other": placed.ranks})]


def _same_place(placed: PlacedNode, *names: str) -> Shard | None:
    """Return the first sharding of operands of one shape; None if their shapes differ."""
    shapes = {placed.tensor(name).shape for name in placed.node.args if name != "grad_output"}
    found = (placed.place(name) for name in names)
    return next((place for place in found if isinstance(place, Shard)), None) if len(shapes) == 1 else None
