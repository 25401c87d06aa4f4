"""Send rows to the ranks of their experts: equal messages with room for `capacity` rows from each rank to each other.

Rows of the rank are sorted by expert, so those for one rank are consecutive. A message has them first and then rows
that are not read. The running sums of rows for each expert go the same way; by these, the receiver sorts what it gets.
No row is dropped: a graph whose messages can be too small checks that they are not, when it runs.
"""

from __future__ import annotations

from typing import Any

from torch_ir.ir import Dtype, TensorMeta
from torch_ir.sharding.rank_writer import NEW, Route, Writer

_INT32 = Dtype("int32")
_ABOVE = {"out_int32": True, "right": True, "side": None, "sorter": None}


def sent(writer: Writer, rows: TensorMeta, ends: TensorMeta, capacity: int) -> tuple[TensorMeta, Route]:
    """Return the rows of all ranks for the rank's own experts, sorted by expert, and how they come back.

    `ends` says where the rows of each expert end among the rank's own.
    """
    ranks, experts, own = writer.ranks, -(-int(ends.shape[0]) // writer.ranks), int(rows.shape[0])
    if experts * ranks > int(ends.shape[0]):  # the last ranks have fewer experts: those that are missing get no rows
        ends = _with_last(writer, ends, experts * ranks)
    by_rank = writer.viewed(ends, [ranks, experts])
    last = writer.add("aten.select.int", {"self": by_rank}, {"dim": 1, "index": experts - 1}, shape=(ranks,))
    last = writer.contiguous(last)
    first = writer.add("aten.constant_pad_nd.default", {"self": last}, {"pad": [1, -1], "value": 0}, shape=(ranks,))
    starts = writer.add("aten.unsqueeze.default", {"self": first}, {"dim": 1}, shape=(ranks, 1))
    if capacity < own:
        _check(writer, last, first, capacity)
    place = _numbers(writer, capacity)
    wanted = _sum(writer, starts, place, (ranks, capacity))
    known = writer.add("aten.clamp.default", {"self": wanted}, {"min": None, "max": own - 1}, shape=(ranks, capacity))
    message = writer.chosen(rows, writer.viewed(known, [ranks * capacity]))
    sums = writer.add("aten.sub.Tensor", {"self": by_rank, "other": starts}, {"alpha": 1}, shape=(ranks, experts))
    got, sums = writer.exchanged(message), writer.exchanged(sums)
    order = _order(writer, sums, place)
    attrs: dict[str, Any] = {"dim": 0, "descending": False}
    slots = writer.add("aten.argsort.default", {"self": order}, attrs, shape=order.shape)
    attrs = {"dim": [0], "keepdim": False, "dtype": _INT32}
    found = writer.add("aten.sum.dim_IntList", {"self": sums}, attrs, shape=(experts,))
    back = _way_back(writer, own, first, last, capacity)
    return writer.chosen(got, order), Route(found, slots, back)


def _check(writer: Writer, last: TensorMeta, first: TensorMeta, capacity: int) -> None:
    """Add an assertion that no rank has more rows for another one than a message has room for."""
    count = writer.add("aten.sub.Tensor", {"self": last, "other": first}, {"alpha": 1}, shape=last.shape)
    fits = writer.add("aten.le.Scalar", {"self": count}, {"other": capacity}, shape=last.shape, dtype="bool")
    fit = writer.add("aten.all.default", {"self": fits}, {}, shape=())
    where = writer.origin.module or "experts"
    message = f"{where}: more than {capacity} rows of a rank go to another one; raise the capacity of all_to_all"
    writer.require(fit, message)


def _order(writer: Writer, sums: TensorMeta, place: TensorMeta) -> TensorMeta:
    """Return the received rows in the order of their experts; unread ones are last."""
    shape = (int(sums.shape[0]), int(place.shape[0]))
    each = writer.add("aten.repeat.default", {"self": place}, {"repeats": [shape[0], 1]}, shape=shape)
    inputs = {"sorted_sequence": sums, "self": each}
    expert = writer.add("aten.searchsorted.Tensor", inputs, _ABOVE, shape=shape)
    flat = writer.viewed(expert, [shape[0] * shape[1]])
    attrs = {"stable": True, "dim": 0, "descending": False}
    return writer.add("aten.argsort.stable", {"self": flat}, attrs, shape=flat.shape, dtype="int64")


def _way_back(writer: Writer, own: int, first: TensorMeta, last: TensorMeta, capacity: int) -> TensorMeta:
    """Return where each of the rank's own rows is among those that come back from all ranks."""
    row = _numbers(writer, own)
    rank = writer.add("aten.searchsorted.Tensor", {"sorted_sequence": last, "self": row}, _ABOVE, shape=(own,))
    begin = writer.chosen(first, rank)
    within = writer.add("aten.sub.Tensor", {"self": row, "other": begin}, {"alpha": 1}, shape=(own,))
    message = writer.add("aten.mul.Scalar", {"self": rank}, {"other": capacity}, shape=(own,))
    return _sum(writer, message, within, (own,))


def _with_last(writer: Writer, ends: TensorMeta, count: int) -> TensorMeta:
    """Return so many running sums, the last one repeated."""
    attrs = {"min": None, "max": int(ends.shape[0]) - 1}
    index = writer.add("aten.clamp.default", {"self": _numbers(writer, count)}, attrs, shape=(count,))
    return writer.chosen(ends, index)


def _numbers(writer: Writer, count: int) -> TensorMeta:
    return writer.add("aten.arange.default", {}, {"end": count, **NEW, "dtype": _INT32})


def _sum(writer: Writer, one: TensorMeta, other: TensorMeta, shape: tuple[int, ...]) -> TensorMeta:
    return writer.add("aten.add.Tensor", {"self": one, "other": other}, {"alpha": 1}, shape=shape)
