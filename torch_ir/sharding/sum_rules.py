"""Rules for operators that work along dimensions: reductions, normalisations, orders, look-ups."""

from __future__ import annotations

from torch_ir.ir import TensorMeta
from torch_ir.ir.graph.placements import PARTIAL, REPLICATE, Partial, Shard
from torch_ir.sharding.dim_rules import moved
from torch_ir.sharding.placement_rules import Ask, Local, is_floating, shards
from torch_ir.sharding.rank_writer import Writer

_REDUCTIONS = {
    "sum": "sum", "mean": "avg", "amax": "max", "amin": "min", "prod": "", "any": "", "all": "", "var": "", "std": "",
    "argmax": "", "argmin": "", "logsumexp": "", "linalg_vector_norm": "", "norm": "",
}  # fmt: skip


@shards(*(f"aten.{name}" for name in _REDUCTIONS))
def reduced(ask: Ask) -> Local | None:
    """Other dimensions may be cut; along one that is cut, each rank has a term."""
    node, place, rank = ask.node, ask.place("self"), ask.rank("self")
    given = node.attrs.get("dim")
    dims = range(rank) if given is None or given == [] else [given] if isinstance(given, int) else given
    gone = {dim % rank for dim in dims} if rank else set()
    kind = _REDUCTIONS[node.op_type.split(".")[1]]
    if isinstance(place, Partial):
        is_linear = kind in ("sum", "avg") and place.reduction == "sum" and is_floating(node)
        return Local({"self": place}, [PARTIAL]) if is_linear else None
    if isinstance(place, Shard) and place.dim in gone:
        may_wait = kind and len(node.outputs) == 1 and is_floating(node)
        return Local({"self": place}, [Partial(kind)]) if may_wait else None
    kept = node.attrs.get("keepdim") is True
    return moved(ask, [dim - (0 if kept else sum(other < dim for other in gone)) for dim in range(rank)])


@shards(
    "aten.softmax", "aten._softmax", "aten.log_softmax", "aten._log_softmax", "aten.cumsum", "aten.cumprod",
    "aten.sort", "aten.topk", "aten.argsort", "aten.glu", "aten.max", "aten.min",
)  # fmt: skip
def along_one(ask: Ask) -> Local | None:
    """Each line along one dimension is computed where the whole of it is."""
    place = ask.place("self")
    if not isinstance(place, Shard) or "dim" not in ask.node.attrs or place.dim == ask.dim():
        return None
    if ask.node.attrs.get("keepdim") is False:
        return moved(ask, [dim - (dim > ask.dim()) for dim in range(ask.rank("self"))])
    return ask.everywhere(place)


@shards("aten.layer_norm", "aten.native_layer_norm", "aten.rms_norm")
def normalised(ask: Ask) -> Local | None:
    """Over the last dimensions, which must be whole."""
    place = ask.place("input")
    first = ask.rank("input") - len(ask.node.attrs["normalized_shape"])
    if not isinstance(place, Shard) or place.dim >= first:
        return None
    return Local({"input": place}, [place] * len(ask.node.outputs))


_BATCHED = (
    "conv1d", "conv2d", "convolution", "max_pool2d", "avg_pool2d", "adaptive_avg_pool2d", "group_norm", "batch_norm",
)  # fmt: skip


@shards(*(f"aten.{name}" for name in _BATCHED))
def batched(ask: Ask) -> Local | None:
    """Samples are computed one by one."""
    first = ask.node.args[0]
    trains = ask.node.attrs.get("training") is True
    is_sample = ask.place(first) == Shard(0) and ask.rank(first) == len(ask.node.outputs[0].shape)
    return Local({first: Shard(0)}, [Shard(0)]) if is_sample and not trains else None


@shards("aten.embedding")
def embedded(ask: Ask) -> Local | None:
    """A table that is cut by rows gives terms: a rank that has not the row of an index gives zero for it."""
    table, indices = ask.place("weight"), ask.place("indices")
    rank = ask.rank("indices")
    if table == Shard(1):
        return Local({"weight": table}, [Shard(rank)])
    if table == Shard(0):
        return Local({"weight": table}, [PARTIAL], write=_own_rows)
    return Local({"indices": indices}, [indices]) if isinstance(indices, Shard) and table == REPLICATE else None


def _own_rows(writer: Writer, inputs: dict[str, TensorMeta], ask: Ask) -> list[TensorMeta]:
    """Indices counted from the first row that the rank has, zeros where they are not of its rows."""
    table, indices = inputs["weight"], inputs["indices"]
    first = writer.first_of(table.shape[0])
    own = writer.add("aten.sub.Tensor", {"self": indices, "other": first}, {"alpha": 1})
    below = writer.add("aten.lt.Scalar", {"self": own}, {"other": 0})
    above = writer.add("aten.ge.Scalar", {"self": own}, {"other": table.shape[0]})
    other = writer.add("aten.logical_or.default", {"self": below, "other": above}, {})
    safe = writer.add("aten.masked_fill.Scalar", {"self": own, "mask": other}, {"value": 0})
    rows = writer.add(ask.node.op_type, {"weight": table, "indices": safe}, {**ask.node.attrs, "padding_idx": -1})
    mask = writer.add("aten.unsqueeze.default", {"self": other}, {"dim": -1})
    return [writer.add("aten.masked_fill.Scalar", {"self": rows, "mask": mask}, {"value": 0})]


@shards("aten.index", "aten.index_select")
def looked_up(ask: Ask) -> Local | None:
    """One dimension is looked up: the others may be cut, or the places that are looked for."""
    found = _looked_for(ask)
    if found is None:
        return None
    at, name = found
    place, where = ask.place("self"), ask.place(name)
    if isinstance(where, Shard):
        return Local({name: where}, [Shard(at + where.dim, where.parts)]) if place == REPLICATE else None
    if isinstance(place, Shard):
        more = ask.rank(name) - 1 if place.dim > at else 0
        return None if place.dim == at else Local({"self": place}, [Shard(place.dim + more, place.parts)])
    is_sum = isinstance(place, Partial) and place.reduction == "sum" and is_floating(ask.node)
    return Local({"self": place}, [PARTIAL]) if is_sum else None


def _looked_for(ask: Ask) -> tuple[int, str] | None:
    """The one dimension that is looked up, and the argument that says where; None for several, and for masks."""
    if ask.has("index"):
        return ask.dim(), "index"
    given = [name for name in ask.node.args if name.startswith("indices.")]
    is_mask = len(given) == 1 and ask.tensor(given[0]).dtype in ("bool", "uint8")
    return (int(given[0].partition(".")[2]), given[0]) if len(given) == 1 and not is_mask else None


@shards("aten.gather")
def gathered(ask: Ask) -> Local | None:
    place = ask.place("self")
    same = isinstance(place, Shard) and place == ask.place("index") and place.dim != ask.dim()
    return ask.everywhere(place) if same else None


@shards("aten.index_copy", "aten.index_add", "aten.slice_scatter")
def written(ask: Ask) -> Local | None:
    """Along one dimension, as caches are; others may be cut, as that of heads is."""
    place, source = ask.place("self"), "src" if ask.has("src") else "source"
    lead = place if isinstance(place, Shard) else ask.place(source)
    is_same_rank = ask.rank(source) == ask.rank("self")
    if not isinstance(lead, Shard) or lead.dim == ask.dim() or not is_same_rank:
        return None
    return Local({"self": lead, source: lead}, [lead])
