"""Sharding rules for experts to which tokens are sent: the style `all_to_all`.

Each rank sorts its own tokens by expert, sends each row to the rank of its expert, and gets the result back:

    rows       rows of the rank's own tokens, sorted by expert
    positions  where these rows come from, among the rank's own
    inverse    where each of the rank's own rows is after sorting
    counts     numbers of rows for all experts, or their running sums
    experts    rows of all ranks for the rank's own experts

Every tensor between the sort and the inverse permutation is one of these. An operator without a rule for them is an
error: no whole tensor has their order.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from torch_ir.analysis.cost_model.routing import routing_behind
from torch_ir.errors import ShardError
from torch_ir.ir import TensorMeta
from torch_ir.ir.graph.operator_sets import base_name
from torch_ir.ir.graph.placements import REPLICATE, Placement, Routed, Shard, local_shape
from torch_ir.sharding.expert_dispatch import sent
from torch_ir.sharding.placement_rules import Local, PlacedNode, asserting, pointwise, rule_of
from torch_ir.sharding.rank_writer import NEW, Writer
from torch_ir.sharding.sum_rules import looked_for

_ROUTER = "aten.sort.default"
_TOKENS = Shard(0)
_CASTS = ("aten.to", "aten._to_copy")


def routed_node(placed: PlacedNode) -> Local | None:
    """Return how a node runs that begins or continues to send tokens to experts; None for any other node."""
    if placed.capacity is not None and placed.node.op_type == _ROUTER and _is_list_of_experts(placed.tensor("self")):
        return _sorted(placed)
    if not any(isinstance(place, Routed) for place in placed.places.values()):
        return None
    base = base_name(placed.node.op_type)
    rule = _RULES.get(base) or (_row_by_row if rule_of(placed.node) is pointwise else None)
    found = rule(placed) if rule else None
    if found is None:
        raise ShardError(
            f"{placed.where}: {placed.node!r} reads rows that are sorted by expert on each rank, which the style "
            "all_to_all does not support; use the style ep_dispatch_experts"
        )
    return found


def _is_list_of_experts(tensor: TensorMeta) -> bool:
    return len(tensor.shape) == 1 and tensor.dtype.startswith("int")


def _sorted(placed: PlacedNode) -> Local:
    """Sort the rank's own choices; tokens that every rank has are divided first."""
    before, chosen = placed.place("self"), placed.tensor("self")
    home = before if isinstance(before, Shard) else _TOKENS
    rows = int(local_shape(chosen, home, placed.ranks, placed.where)[0])
    kinds = ("rows", "positions")
    return Local({"self": home}, [Routed(kind, home, placed.node.name, rows) for kind in kinds])


def _row_by_row(placed: PlacedNode) -> Local | None:
    """Other operands have no rows; rows that were sent to experts come back for those that were not."""
    node, base = placed.node, base_name(placed.node.op_type)
    found = {place for place in placed.places.values() if isinstance(place, Routed)}
    kinds = {place.kind for place in found}
    if len(found) == 1 and base in _CASTS:
        return placed.everywhere(found.pop())
    if not kinds <= {"rows", "experts"} or len(found) > len(kinds):
        return None
    target = min(found, key=lambda place: place.kind == "experts")
    inputs: dict[str, Placement] = {}
    for name, tensor in zip(node.args, node.inputs, strict=True):
        has_rows = len(tensor.shape) == len(node.outputs[0].shape) and tensor.shape[0] == node.outputs[0].shape[0]
        if has_rows and not isinstance(placed.place(name), Routed):
            return None
        inputs[name] = target if has_rows else REPLICATE
    return Local(inputs, [target] * len(node.outputs))


def _of_positions(placed: PlacedNode) -> Local | None:
    """Tokens of rows, and memory for the inverse; other operators would see numbers of one rank."""
    place, count = placed.place("self"), placed.node.attrs.get("other", 1)
    if not isinstance(place, Routed) or place.kind != "positions" or type(count) is not int or len(placed.places) > 1:
        return None
    return Local({"self": place}, [replace(place, per_token=place.per_token * count)])


def _of_columns(placed: PlacedNode) -> Local | None:
    """Split, slice or add dimensions behind that of rows."""
    place = placed.place("self")
    dim = placed.node.attrs.get("dim", 0)
    is_behind = isinstance(dim, int) and dim % (placed.rank("self") + placed.node.op_type.startswith("aten.unsq")) > 0
    is_rows = isinstance(place, Routed) and place.kind in ("rows", "experts")
    return placed.everywhere(place) if is_rows and is_behind else None


def _looked_up(placed: PlacedNode) -> Local | None:
    """Select rows of tokens, weights of the chosen experts, or rows in the order of the tokens."""
    found = looked_for(placed)
    index = placed.place(found[1]) if found else None
    if found is None or found[0] != 0 or not isinstance(index, Routed):
        return None
    source, rows = placed.place("self"), replace(index, kind="rows", per_token=1)
    whole, tokens = placed.tensor(found[1]).shape[0], placed.tensor("self").shape[0]
    if index.kind == "inverse" and isinstance(source, Routed) and source.kind in ("rows", "experts"):
        return Local({"self": rows, found[1]: index}, [index.home])
    if isinstance(source, Routed):
        return None
    if index.kind == "rows":
        return Local({found[1]: index}, [rows])
    is_of_tokens = index.kind == "positions" and isinstance(tokens, int) and tokens * index.per_token == whole
    return Local({"self": index.home, found[1]: index}, [rows]) if is_of_tokens else None


def _counted(placed: PlacedNode) -> Local | None:
    """Count the rank's own rows of each expert, and sum the counts."""
    place = placed.place("self")
    wanted = "rows" if placed.node.op_type.startswith("aten.histc") else "counts"
    if not isinstance(place, Routed) or place.kind != wanted:
        return None
    return Local({"self": place}, [replace(place, kind="counts", rows=None)])


def _inverted(placed: PlacedNode) -> Local | None:
    """Write row numbers at the positions of the rows."""
    index = placed.place("indices.0")
    numbers = placed.tensor("values").producer
    is_inverse = (
        isinstance(index, Routed)
        and (index.kind, index.per_token, placed.rank("self")) == ("positions", 1, 1)
        and numbers is not None
        and numbers.op_type == "aten.arange.default"
        and numbers.attrs["end"] == placed.tensor("indices.0").shape[0]
        and not placed.node.attrs.get("accumulate")
    )
    if not is_inverse or not isinstance(index, Routed):
        return None
    inputs = {"self": index if isinstance(placed.place("self"), Routed) else index.home, "indices.0": index}
    return Local(inputs, [replace(index, kind="inverse")], write=_own_numbers)


def _own_numbers(writer: Writer, inputs: dict[str, TensorMeta], placed: PlacedNode) -> list[TensorMeta]:
    numbers = writer.add("aten.arange.default", {}, {"end": inputs["indices.0"].shape[0], **NEW})
    shape = inputs["self"].shape
    return [writer.add(placed.node.op_type, {**inputs, "values": numbers}, placed.node.attrs, shape=shape)]


def _grouped(placed: PlacedNode) -> Local | None:
    """Send rows to the ranks of their experts, or multiply them here with the weights of all experts."""
    given, weight = placed.node.args[:2]
    rows, ends, experts = placed.place(given), placed.place("offs"), placed.place(weight)
    if placed.has("bias") or not isinstance(rows, Routed) or not isinstance(ends, Routed) or ends.kind != "counts":
        return None
    if rows.order != ends.order or rows.ends not in ("", placed.tensor("offs").name):
        return None
    if experts == REPLICATE and rows.kind == "rows":
        return Local({given: rows, "offs": ends}, [rows])
    if not isinstance(experts, Shard) or (experts.dim, experts.parts) != (0, 1) or rows.kind not in ("rows", "experts"):
        return None
    return Local({given: rows, "offs": ends, weight: experts}, [_destination(placed, rows)], write=_at_experts)


def _destination(placed: PlacedNode, rows: Routed) -> Routed:
    """Return the placement of rows at their experts."""
    if rows.kind == "experts":
        return rows
    room = _capacity(placed, int(rows.rows or 0))
    return replace(rows, kind="experts", rows=room * placed.ranks, ends=placed.tensor("offs").name)


def _capacity(placed: PlacedNode, rows: int) -> int:
    """Return how many of a rank's rows have room at another rank: at most as many as any routing can need."""
    experts = -(-int(placed.tensor(placed.node.args[1]).shape[0]) // placed.ranks)
    routing, most = routing_behind(placed.tensor("offs")), rows
    if routing is not None and routing.tokens * routing.choices == rows * placed.ranks:
        most = routing.tokens // placed.ranks * min(routing.choices, experts)
    mean = rows / placed.ranks
    return min(most, math.ceil(min(placed.capacity or math.inf, float(rows)) * mean))


def _at_experts(writer: Writer, inputs: dict[str, TensorMeta], placed: PlacedNode) -> list[TensorMeta]:
    """Multiply rows with the weights of their experts, where these are."""
    given = placed.node.args[0]
    before, rows = placed.place(given), inputs[given]
    assert isinstance(before, Routed)
    there = _destination(placed, before)
    if before != there:
        rows, writer.routes[there] = sent(writer, rows, inputs["offs"], int(there.rows or 0) // placed.ranks)
    inputs = {**inputs, given: rows, "offs": writer.routes[there].ends}
    shape = (rows.shape[0], placed.node.outputs[0].shape[1])
    return [writer.add(placed.node.op_type, inputs, placed.node.attrs, shape=shape)]


_RULES: dict[str, Callable[[PlacedNode], Local | None]] = {
    **dict.fromkeys(("aten.chunk", "aten.split", "aten.split_with_sizes", "aten.slice", "aten.unsqueeze"), _of_columns),
    **dict.fromkeys(("aten.index", "aten.index_select"), _looked_up),
    **dict.fromkeys(("aten.histc", "aten.cumsum"), _counted),
    **dict.fromkeys(("aten._grouped_mm", "transformers.grouped_mm_fallback"), _grouped),
    **dict.fromkeys(("aten.floor_divide", "aten.empty_like"), _of_positions),
    "aten.index_put": _inverted,
    "aten._assert_tensor_metadata": asserting,
}
