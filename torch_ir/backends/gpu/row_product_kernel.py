"""The kernel of `row_product` in Triton: each program reads some rows of the matrix once."""

from __future__ import annotations

import triton  # type: ignore[import-not-found,unused-ignore]  # part of torch for GPUs
import triton.language as tl  # type: ignore[import-not-found,unused-ignore]
from torch import Tensor

# rows of the matrix, columns at a time, warps: the fastest is measured for each size
_SHAPES = ((1, 1024, 4), (2, 1024, 4), (4, 512, 4), (4, 1024, 8), (8, 256, 4), (8, 512, 8), (16, 256, 8), (2, 2048, 8))
_CONFIGS = [triton.Config({"ROWS": rows, "COLUMNS": columns}, num_warps=warps) for rows, columns, warps in _SHAPES]


def launch(row: Tensor, matrix: Tensor, bias: Tensor | None) -> Tensor:
    """Return the product of a row with the transposed matrix, plus a bias."""
    matrix = matrix.contiguous()
    count, width = matrix.shape
    result = row.new_empty((*row.shape[:-1], count))

    def grid(chosen: dict[str, int]) -> tuple[int]:
        return (triton.cdiv(count, chosen["ROWS"]),)

    given = row if bias is None else bias
    _product[grid](row.contiguous(), matrix, given, result, count, width, HAS_BIAS=bias is not None)
    return result


@triton.autotune(configs=_CONFIGS, key=["count", "width"])  # type: ignore[untyped-decorator,unused-ignore]
@triton.jit  # type: ignore[untyped-decorator,unused-ignore]
def _product(
    row, matrix, bias, result, count, width,
    HAS_BIAS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Multiply in float32; sums over columns are added up only at the end."""
    at = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, COLUMNS)
    is_row = at < count
    first = matrix + at[:, None].to(tl.int64) * width
    sums = tl.zeros([ROWS, COLUMNS], tl.float32)
    for start in range(0, width, COLUMNS):
        place = start + column
        is_column = place < width
        x = tl.load(row + place, mask=is_column, other=0.0).to(tl.float32)
        inside = is_row[:, None] & is_column[None, :]
        w = tl.load(first + place[None, :], mask=inside, other=0.0, eviction_policy="evict_first").to(tl.float32)
        sums += w * x[None, :]
    total = tl.sum(sums, 1)
    if HAS_BIAS:
        total += tl.load(bias + at, mask=is_row, other=0.0).to(tl.float32)
    tl.store(result + at, total, mask=is_row)
