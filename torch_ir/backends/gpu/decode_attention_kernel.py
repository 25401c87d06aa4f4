"""The kernel of `decode_attention` in Triton: parts of the cache side by side, then their weighted sum."""

from __future__ import annotations

import torch
import triton  # type: ignore[import-not-found,unused-ignore]  # part of torch for GPUs
import triton.language as tl  # type: ignore[import-not-found,unused-ignore]
from torch import Tensor

_ROWS = 16  # least rows of a matrix product: the heads that share keys, padded
_KEYS = 64  # in one block
_MOST_PARTS = 64


def launch(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scale: float) -> Tensor:
    """Return the attention of one query for each head; see `decode_attention`."""
    batch, heads, _, width = query.shape
    pairs, length = key.shape[1], key.shape[2]
    blocks = triton.cdiv(length, _KEYS)
    wanted = triton.cdiv(torch.cuda.get_device_properties(query.device).multi_processor_count, batch * pairs)
    parts = max(1, min(blocks, wanted, _MOST_PARTS))
    each = triton.cdiv(blocks, parts)
    parts = triton.cdiv(blocks, each)
    rows = max(_ROWS, triton.next_power_of_2(heads // pairs))
    columns = triton.next_power_of_2(width)
    sums = query.new_empty((batch * pairs, parts, rows, width), dtype=torch.float32)
    scores = query.new_empty((2, batch * pairs, parts, rows), dtype=torch.float32)
    result = query.new_empty((batch, heads, 1, width))
    given = query if mask is None else mask.view(torch.uint8)
    steps = (0, 0) if mask is None else (mask.stride(0) if mask.shape[0] > 1 else 0, mask.stride(3))
    _part[(batch * pairs, parts)](
        query, key, value, given, sums, scores[0], scores[1], scale, length,
        query.stride(0), query.stride(1), query.stride(3),
        key.stride(0), key.stride(1), key.stride(2), key.stride(3),
        value.stride(0), value.stride(1), value.stride(2), value.stride(3),
        *steps,
        PAIRS=pairs, GROUP=heads // pairs, ROWS=rows, WIDTH=width, COLUMNS=columns, KEYS=_KEYS, EACH=each,
        HAS_MASK=mask is not None, num_warps=4,
    )  # fmt: skip
    _sum[(batch * heads,)](
        sums, scores[0], scores[1], result, parts,
        GROUP=heads // pairs, ROWS=rows, WIDTH=width, COLUMNS=columns, PARTS=triton.next_power_of_2(parts),
        num_warps=4 if parts * width > 1024 else 1,
    )  # fmt: skip
    return result


@triton.jit  # type: ignore[untyped-decorator,unused-ignore]
def _part(  # type: ignore[no-untyped-def]  # Triton reads annotations as values
    query, key, value, mask, sums, tops, totals, scale, length,
    query_batch, query_head, query_step,
    key_batch, key_head, key_place, key_step,
    value_batch, value_head, value_place, value_step,
    mask_batch, mask_place,
    PAIRS: tl.constexpr, GROUP: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr, COLUMNS: tl.constexpr,
    KEYS: tl.constexpr, EACH: tl.constexpr, HAS_MASK: tl.constexpr,
):  # fmt: skip
    """Attend to one part of the cache for the heads that share keys: the maximum, the total and the weighted sum."""
    pair = tl.program_id(0)
    part = tl.program_id(1)
    batch = (pair // PAIRS).to(tl.int64)
    head = (pair % PAIRS).to(tl.int64)
    row = tl.arange(0, ROWS)
    column = tl.arange(0, COLUMNS)
    is_row = row[:, None] < GROUP
    is_column = column[None, :] < WIDTH
    places = query + batch * query_batch + (head * GROUP + row[:, None]) * query_head + column[None, :] * query_step
    q = tl.load(places, mask=is_row & is_column, other=0.0)
    top = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    mixed = tl.zeros([ROWS, COLUMNS], tl.float32)
    for block in range(EACH):
        place = (part * EACH + block) * KEYS + tl.arange(0, KEYS)
        is_place = place < length
        if HAS_MASK:
            seen = tl.load(mask + batch * mask_batch + place * mask_place, mask=is_place, other=0)
            is_place = is_place & (seen != 0)
        if tl.max(is_place.to(tl.int32), 0) > 0:
            inside = is_place[:, None] & is_column
            start = key + batch * key_batch + head * key_head
            k = tl.load(start + place[:, None] * key_place + column[None, :] * key_step, mask=inside, other=0.0)
            start = value + batch * value_batch + head * value_head
            v = tl.load(start + place[:, None] * value_place + column[None, :] * value_step, mask=inside, other=0.0)
            s = tl.dot(q, tl.trans(k)) * scale
            s = tl.where(is_place[None, :], s, float("-inf"))
            new = tl.maximum(top, tl.max(s, 1))
            safe = tl.where(new == float("-inf"), 0.0, new)
            weight = tl.exp(s - safe[:, None])
            decay = tl.exp(top - safe)
            total = total * decay + tl.sum(weight, 1)
            mixed = mixed * decay[:, None] + tl.dot(weight.to(v.dtype), v)
            top = new
    first = (pair * tl.num_programs(1) + part) * ROWS + row
    tl.store(tops + first, top)
    tl.store(totals + first, total)
    tl.store(sums + first[:, None] * WIDTH + column[None, :], mixed, mask=is_row & is_column)


@triton.jit  # type: ignore[untyped-decorator,unused-ignore]
def _sum(  # type: ignore[no-untyped-def]  # as above
    sums, tops, totals, result, parts,
    GROUP: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr, COLUMNS: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    """Add the parts of one head, each scaled by its maximum."""
    head = tl.program_id(0)
    part = tl.arange(0, PARTS)
    column = tl.arange(0, COLUMNS)
    at = ((head // GROUP) * parts + part) * ROWS + head % GROUP
    top = tl.load(tops + at, mask=part < parts, other=float("-inf"))
    best = tl.max(top, 0)
    scale = tl.exp(top - tl.where(best == float("-inf"), 0.0, best))
    total = tl.sum(tl.load(totals + at, mask=part < parts, other=0.0) * scale, 0)
    inside = (part < parts)[:, None] & (column < WIDTH)[None, :]
    mixed = tl.load(sums + at[:, None] * WIDTH + column[None, :], mask=inside, other=0.0)
    out = tl.sum(mixed * scale[:, None], 0) / tl.where(total == 0.0, 1.0, total)  # 0 if no key is seen, as in torch
    tl.store(result + head * WIDTH + column, out, mask=column < WIDTH)
