"""Sharding rules for operators along dimensions: reductions, normalisations, sorting, look-ups."""

from __future__ import annotations

from torch_ir.ir import TensorMeta
from torch_ir.ir.graph.placements import PARTIAL, REPLICATE, Padded, Partial, Shard
from torch_ir.sharding.dim_rules import moved
from torch_ir.sharding.placement_rules import Local, PlacedNode, is_floating, shards
from torch_ir.sharding.rank_writer import Writer

_REDUCTIONS = {
    "sum": "sum", "mean": "avg", "amax": "max", "amin": "min", "prod": "", "any": "", "all": "", "var": "", "std": "",
    "argmax": "", "argmin": "", "logsumexp": "", "linalg_vector_norm": "", "norm": "",
}  # fmt: skip


@shards(*(f"aten.{name}" for name in _REDUCTIONS))
def reduced(placed: PlacedNode) -> Local | None:
    """Other dimensions may be sharded; along a sharded one, each rank has a term."""
    node, place, rank = placed.node, placed.place("self"), placed.rank("self")
    given = node.attrs.get("dim")
    dims = range(rank) if given is None or given == [] else [given] if isinstance(given, int) else given
    gone = {dim % rank for dim in dims} if rank else set()
    kind = _REDUCTIONS[node.op_type.split(".")[1]]
    if isinstance(place, Partial):
        is_linear = kind in ("sum", "avg") and place.reduction == "sum" and is_floating(node)
        return Local({"self": place}, [PARTIAL]) if is_linear else None
    if isinstance(place, Shard) and place.dim in gone and _is_euclidean(placed):
        return Local({"self": place}, [REPLICATE], write=_norm_of_shards)
    if isinstance(place, Shard) and place.dim in gone:
        may_wait = kind and len(node.outputs) == 1 and is_floating(node)
        return Local({"self": place}, [Partial(kind)]) if may_wait else None
    kept = node.attrs.get("keepdim") is True
    return moved(placed, [dim - (0 if kept else sum(other < dim for other in gone)) for dim in range(rank)])


def _is_euclidean(placed: PlacedNode) -> bool:
    return placed.node.op_type.startswith("aten.linalg_vector_norm") and placed.node.attrs.get("ord", 2) == 2


def _norm_of_shards(writer: Writer, inputs: dict[str, TensorMeta], placed: PlacedNode) -> list[TensorMeta]:
    """Return the Euclidean norm of a tensor, as gradient clipping computes it, from the norms of its shards."""
    own = writer.add(placed.node.op_type, inputs, placed.node.attrs)
    squares = writer.add("aten.mul.Tensor", {"self": own, "other": own}, {})
    return [writer.add("aten.sqrt.default", {"self": writer.moved(squares, PARTIAL, REPLICATE)}, {})]


@shards(
    "aten.softmax", "aten._softmax", "aten.log_softmax", "aten._log_softmax", "aten.cumsum", "aten.cumprod",
    "aten.sort", "aten.topk", "aten.argsort", "aten.glu", "aten.max", "aten.min",
)  # fmt: skip
def along_one(placed: PlacedNode) -> Local | None:
    """All dimensions but one may be sharded."""
    place = placed.place("self")
    if not isinstance(place, Shard) or "dim" not in placed.node.attrs or place.dim == placed.dim():
        return None
    if placed.node.attrs.get("keepdim") is False:
        return moved(placed, [dim - (dim > placed.dim()) for dim in range(placed.rank("self"))])
    return placed.everywhere(place)


@shards("aten.layer_norm", "aten.native_layer_norm", "aten.rms_norm")
def normalised(placed: PlacedNode) -> Local | None:
    """The normalised dimensions must be whole."""
    place = placed.place("input")
    first = placed.rank("input") - len(placed.node.attrs["normalized_shape"])
    if not isinstance(place, Shard) or place.dim >= first:
        return None
    return Local({"input": place}, [place] * len(placed.node.outputs))


_BATCHED = (
    "conv1d", "conv2d", "convolution", "max_pool2d", "avg_pool2d", "adaptive_avg_pool2d", "group_norm", "batch_norm",
)  # fmt: skip


@shards(*(f"aten.{name}" for name in _BATCHED))
def batched(placed: PlacedNode) -> Local | None:
    """The batch dimension may be sharded."""
    first = placed.node.args[0]
    trains = placed.node.attrs.get("training") is True
    is_one_sample = placed.node.op_type.startswith("aten.conv") and placed.rank(first) < placed.rank("weight")
    is_cut = placed.place(first) == Shard(0) and placed.rank(first) == len(placed.node.outputs[0].shape)
    return Local({first: Shard(0)}, [Shard(0)]) if is_cut and not (trains or is_one_sample) else None


@shards("aten.embedding")
def embedded(placed: PlacedNode) -> Local | None:
    """A table sharded by rows yields terms: a rank without the row of an index contributes zero."""
    table, indices = placed.place("weight"), placed.place("indices")
    rank = placed.rank("indices")
    if isinstance(table, Shard) and table.dim == 1:
        return Local({"weight": table}, [table.at(rank)])
    if isinstance(table, Shard) and table.parts == 1:
        return Local({"weight": table}, [PARTIAL], write=_own_rows)
    return Local({"indices": indices}, [indices]) if isinstance(indices, Shard) and table == REPLICATE else None


def _own_rows(writer: Writer, inputs: dict[str, TensorMeta], placed: PlacedNode) -> list[TensorMeta]:
    """Look up indices relative to the rank's first row, with zeros for rows of other ranks.

    An index outside of the whole table becomes -1, for which the operator raises on every rank, as it does in eager.
    """
    table, indices = inputs["weight"], inputs["indices"]
    outside = [
        writer.add("aten.lt.Scalar", {"self": indices}, {"other": 0}),
        writer.add("aten.ge.Scalar", {"self": indices}, {"other": placed.tensor("weight").shape[0]}),
    ]
    nowhere = writer.add("aten.logical_or.default", {"self": outside[0], "other": outside[1]}, {})
    first = writer.first_of(table.shape[0])
    own = writer.add("aten.sub.Tensor", {"self": indices, "other": first}, {"alpha": 1})
    below = writer.add("aten.lt.Scalar", {"self": own}, {"other": 0})
    above = writer.add("aten.ge.Scalar", {"self": own}, {"other": table.shape[0]})
    other = writer.add("aten.logical_or.default", {"self": below, "other": above}, {})
    safe = writer.add("aten.masked_fill.Scalar", {"self": own, "mask": other}, {"value": 0})
    safe = writer.add("aten.masked_fill.Scalar", {"self": safe, "mask": nowhere}, {"value": -1})
    rows = writer.add(placed.node.op_type, {"weight": table, "indices": safe}, {**placed.node.attrs, "padding_idx": -1})
    mask = writer.add("aten.unsqueeze.default", {"self": other}, {"dim": -1})
    return [writer.add("aten.masked_fill.Scalar", {"self": rows, "mask": mask}, {"value": 0})]


@shards("aten.index", "aten.index_select")
def looked_up(placed: PlacedNode) -> Local | None:
    """One dimension is indexed: the others may be sharded, or the index tensor."""
    found = looked_for(placed)
    if found is None:
        return None
    at, name = found
    place, where = placed.place("self"), placed.place(name)
    if isinstance(where, Padded):
        return None  # behind the end, it may be any number
    if isinstance(where, Shard):
        return Local({name: where}, [where.at(at + where.dim)]) if place == REPLICATE else None
    if isinstance(place, Shard):
        more = placed.rank(name) - 1 if place.dim > at else 0
        return None if place.dim == at else Local({"self": place}, [place.at(place.dim + more)])
    is_sum = isinstance(place, Partial) and place.reduction == "sum" and is_floating(placed.node)
    return Local({"self": place}, [PARTIAL]) if is_sum else None


def looked_for(placed: PlacedNode) -> tuple[int, str] | None:
    """Return the indexed dimension and the index argument; None for several, and for masks."""
    if placed.has("index"):
        return placed.dim(), "index"
    given = [name for name in placed.node.args if name.startswith("indices.")]
    is_mask = len(given) == 1 and placed.tensor(given[0]).dtype in ("bool", "uint8")
    return (int(given[0].partition(".")[2]), given[0]) if len(given) == 1 and not is_mask else None


@shards("aten.gather")
def gathered(placed: PlacedNode) -> Local | None:
    """The index may have fewer rows than `self`: then the rows of a rank are not those of its indices."""
    place = placed.place("self")
    if not isinstance(place, Shard) or place != placed.place("index") or place.dim == placed.dim():
        return None
    is_same_size = placed.tensor("self").shape[place.dim] == placed.tensor("index").shape[place.dim]
    return placed.everywhere(place) if is_same_size else None


@shards("aten.index_copy", "aten.index_add", "aten.slice_scatter")
def written(placed: PlacedNode) -> Local | None:
    """Writes along one dimension, as into caches; others, such as that of heads, may be sharded."""
    place, source = placed.place("self"), "src" if placed.has("src") else "source"
    lead = place if isinstance(place, Shard) else placed.place(source)
    is_same_rank = placed.rank(source) == placed.rank("self")
    if not isinstance(lead, Shard) or lead.dim == placed.dim() or not is_same_rank:
        return None
    return Local({"self": lead, source: lead}, [lead])
