"""Sharding rules for attention: by batches, by heads, and by positions of the sequence (context parallelism)."""

from __future__ import annotations

from torch_ir.ir import TensorMeta
from torch_ir.ir.graph.placements import Padded, Placement, Shard
from torch_ir.sharding.placement_rules import Local, PlacedNode, shards
from torch_ir.sharding.product_rules import added
from torch_ir.sharding.rank_writer import Writer
from torch_ir.sharding.ring_attention import in_blocks


@shards("aten.scaled_dot_product_attention")
def attention(placed: PlacedNode) -> Local | None:
    """query [..., heads, m, d], key and value [..., heads, n, d]: batches, heads and queries may be sharded.

    If queries are (context parallelism), every rank gathers keys and values, and masks them by the positions of its own
    queries; with the style `ring`, keys and values stay sharded.
    """
    rank = placed.rank("query")
    places = [placed.place(name) for name in ("query", "key", "value")]
    lead = next((place for place in places if isinstance(place, Shard)), None)
    is_causal = placed.node.attrs["is_causal"] is True
    if placed.is_ring and lead == Shard(rank - 2):
        given = dict.fromkeys(("query", "key", "value"), lead)
        masks = {"attn_mask": added(placed, "attn_mask", lead, rank)} if placed.has("attn_mask") else {}
        return Local({**given, **masks}, [lead], write=in_blocks)
    if lead is None or lead.parts > 1 or any(placed.rank(name) != rank for name in ("key", "value")):
        return None
    write = None
    if lead.dim < rank - 2 and placed.place("query") == lead and _are_shared(placed, lead):
        inputs: dict[str, Placement] = {"query": lead}
        write = _with_shared_heads
    elif lead.dim < rank - 2:
        inputs = {name: lead for name in ("query", "key", "value") if placed.tensor(name).shape[lead.dim] != 1}
        if isinstance(lead, Padded) and any(placed.tensor(name).shape[lead.dim] != lead.size for name in inputs):
            return None
        for name in inputs if not isinstance(lead, Padded) else ():
            placed.check_cut(placed.tensor(name), lead.dim)
    elif lead == Shard(rank - 2) == places[0]:
        inputs = {"query": lead}
        write = _of_own_queries if is_causal else None
    else:
        return None
    if placed.has("attn_mask"):
        inputs["attn_mask"] = added(placed, "attn_mask", lead, rank)
    return Local(inputs, [lead], write=write)


def _are_shared(placed: PlacedNode, cut: Shard) -> bool:
    """Whether query heads are sharded that share key and value heads, too few for all ranks."""
    heads, shared = placed.tensor("query").shape[cut.dim], placed.tensor("key").shape[cut.dim]
    is_grouped = placed.node.attrs.get("enable_gqa") is True and cut.dim == placed.rank("query") - 3
    if not is_grouped or not isinstance(heads, int) or not isinstance(shared, int):
        return False
    is_cut = cut.unit == 1 if isinstance(cut, Padded) else heads % placed.ranks == 0
    return is_cut and shared < heads and heads % shared == 0 and shared % placed.ranks != 0


def _with_shared_heads(writer: Writer, inputs: dict[str, TensorMeta], placed: PlacedNode) -> list[TensorMeta]:
    """Select the heads of whole keys and values that the rank's queries use."""
    dim = placed.rank("query") - 3
    heads, shared = (int(placed.tensor(name).shape[dim]) for name in ("query", "key"))
    index = writer.shared_rows(heads, heads // shared)
    given = dict(inputs)
    for name in ("key", "value"):
        given[name] = writer.add("aten.index_select.default", {"self": inputs[name], "index": index}, {"dim": dim})
    return [writer.add(placed.node.op_type, given, placed.node.attrs)]


def _of_own_queries(writer: Writer, inputs: dict[str, TensorMeta], placed: PlacedNode) -> list[TensorMeta]:
    """Attend to the keys up to each of the rank's own queries: `is_causal` counts from the first local one."""
    queries, keys = (int(placed.tensor(name).shape[-2]) for name in ("query", "key"))
    given = {**inputs, "attn_mask": writer.causal_mask(queries, keys)}
    attrs = {name: value for name, value in placed.node.attrs.items() if name != "attn_mask"}
    shape = (*inputs["query"].shape[:-1], inputs["value"].shape[-1])
    return [writer.add(placed.node.op_type, given, {**attrs, "is_causal": False}, shape=shape)]
