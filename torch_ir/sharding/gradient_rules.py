"""Sharding rules for operators of backward: of a sharded batch, gradients of weights are terms of a sum."""

from __future__ import annotations

from torch_ir.ir.graph.placements import PARTIAL, Padded, Placement, Shard
from torch_ir.sharding.dim_rules import moved
from torch_ir.sharding.placement_rules import Local, PlacedNode, aligned, pointwise, shards

_BACKWARD_OF_POINTWISE = (
    "elu", "hardswish", "leaky_relu", "softplus", "log_sigmoid", "hardtanh", "hardsigmoid", "mish", "hardshrink",
)  # fmt: skip


_NOT_TAGGED = ("aten.hardswish", "aten.log_sigmoid_forward", "aten.copy")  # element-wise, though torch does not say so


@shards(*_NOT_TAGGED, *(f"aten.{name}_backward" for name in _BACKWARD_OF_POINTWISE))
def of_pointwise(placed: PlacedNode) -> Local | None:
    """Gradients of element-wise operators, element by element."""
    return pointwise(placed)


@shards("aten._softmax_backward_data", "aten._log_softmax_backward_data")
def of_softmax(placed: PlacedNode) -> Local | None:
    """All dimensions but one may be sharded."""
    lead = _lead(placed, "grad_output", "output")
    return placed.everywhere(lead) if lead is not None and lead.dim != placed.dim(of="output") else None


@shards("aten.native_layer_norm_backward")
def of_normalised(placed: PlacedNode) -> Local | None:
    """grad_out, input, mean, rstd, weight -> gradients of the input, of the weight, and of the bias, if there is one"""
    lead = _lead(placed, "grad_out", "input")
    first = placed.rank("input") - len(placed.node.attrs["normalized_shape"])
    if lead is None or lead.dim >= first:
        return None
    rows = [name for name in ("grad_out", "input", "mean", "rstd") if placed.has(name)]
    made: list[Placement] = [
        lead if tensor.shape == placed.tensor("input").shape else PARTIAL for tensor in placed.node.outputs
    ]
    return Local(dict.fromkeys(rows, lead), made)


@shards("aten.convolution_backward")
def of_samples(placed: PlacedNode) -> Local | None:
    """The batch dimension may be sharded: gradients of weights are terms."""
    if _lead(placed, "grad_output", "input") != Shard(0):
        return None
    made: list[Placement] = [Shard(0), *[PARTIAL] * (len(placed.node.outputs) - 1)]
    if placed.node.attrs["output_mask"][0] is not True:
        made = [PARTIAL] * len(placed.node.outputs)
    return Local({"grad_output": Shard(0), "input": Shard(0)}, made)


_POOLS = (
    "max_pool2d_with_indices", "max_pool2d_with_indices_backward", "avg_pool2d_backward", "_adaptive_avg_pool2d",
    "_adaptive_avg_pool2d_backward",
)  # fmt: skip


@shards(*(f"aten.{name}" for name in _POOLS))
def pooled(placed: PlacedNode) -> Local | None:
    """The batch dimension may be sharded, if there is one."""
    is_cut = Shard(0) in placed.places.values() and placed.rank("self") == 4
    return placed.everywhere(Shard(0)) if is_cut else None


@shards("aten.embedding_dense_backward")
def of_embedded(placed: PlacedNode) -> Local | None:
    """A shard of the looked-up rows yields terms of the table's gradient; columns yield columns."""
    grad, indices = placed.place("grad_output"), placed.place("indices")
    last = placed.rank("grad_output") - 1
    if placed.node.attrs["scale_grad_by_freq"]:
        return None
    if isinstance(grad, Shard) and grad.dim == last:
        return Local({"grad_output": grad}, [grad.at(1)])
    lead = next((place for place in (grad, indices) if isinstance(place, Shard)), None)
    if lead is not None:
        return Local({"grad_output": lead, "indices": lead}, [PARTIAL])
    return Local({"grad_output": grad}, [PARTIAL]) if grad == PARTIAL else None


@shards("aten.slice_backward", "aten.select_backward")
def of_slice(placed: PlacedNode) -> Local | None:
    """Dimensions that were not sliced may be sharded; terms stay terms."""
    place, sizes, rank = (
        placed.place("grad_output"),
        placed.node.attrs["input_sizes"],
        len(placed.node.outputs[0].shape),
    )
    at = int(placed.node.attrs["dim"]) % rank
    if place == PARTIAL:
        return Local({"grad_output": place}, [PARTIAL])
    if not isinstance(place, Shard):
        return None
    dim = place.dim + (place.dim >= at and placed.rank("grad_output") < rank)
    if dim == at or not isinstance(sizes[dim], int):
        return None
    cut = [place.own(size, placed.ranks) if number == dim else size for number, size in enumerate(sizes)]
    return Local({"grad_output": place}, [place.at(dim)], {"input_sizes": cut})


_FLASH = "aten._scaled_dot_product_flash_attention_for_cpu"


@shards(_FLASH, f"{_FLASH}_backward")
def attention(placed: PlacedNode) -> Local | None:
    """query [batch, heads, m, d], key and value [batch, heads, n, d]: batches and heads may be sharded."""
    lead = _lead(placed, "query", "key", "value", "grad_out")
    heads = [placed.tensor(name).shape[1] for name in ("query", "key", "value")]
    if lead is None or lead.dim > 1 or lead.parts > 1:
        return None
    is_divided = len(set(heads)) == 1 if isinstance(lead, Padded) else not any(_rest(n, placed.ranks) for n in heads)
    if lead.dim == 1 and not is_divided:
        return None
    inputs: dict[str, Placement] = {name: lead for name in placed.node.args if name != "attn_mask"}
    if placed.has("attn_mask"):
        mask = placed.tensor("attn_mask")
        inputs["attn_mask"] = aligned(lead, 4, mask, placed.tensor("query").shape[lead.dim])
    return Local(inputs, [lead] * len(placed.node.outputs))


def _rest(size: object, ranks: int) -> bool:
    return not isinstance(size, int) or size % ranks != 0


@shards("aten.repeat")
def repeated(placed: PlacedNode) -> Local | None:
    """Dimensions that are not repeated may be sharded."""
    place, times = placed.place("self"), placed.node.attrs["repeats"]
    more = len(times) - placed.rank("self")
    if isinstance(place, Shard) and times[place.dim + more] != 1:
        return None
    return moved(placed, [dim + more for dim in range(placed.rank("self"))])


def _lead(placed: PlacedNode, *names: str) -> Shard | None:
    """Return the placement of the first of these arguments that is sharded."""
    found = (placed.place(name) for name in names if placed.has(name))
    return next((place for place in found if isinstance(place, Shard)), None)
