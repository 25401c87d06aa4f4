"""The kernel of `row_product` in Triton: each program reads some rows of the matrix once."""

from __future__ import annotations

import triton  # type: ignore[import-not-found,unused-ignore]  # part of torch for GPUs
import triton.language as tl  # type: ignore[import-not-found,unused-ignore]
from torch import Tensor

# rows of the matrix, columns at a time, unrolled, warps: the fastest is measured for each size
_SHAPES = (
    (1, 1024, 2, 1), (1, 2048, 1, 2), (1, 2048, 2, 4), (2, 1024, 2, 2), (2, 1024, 2, 4), (2, 2048, 1, 8),
    (4, 256, 8, 4), (4, 512, 4, 4), (4, 1024, 2, 8), (8, 256, 4, 8), (8, 512, 2, 8), (16, 256, 4, 8),
)  # fmt: skip
_CONFIGS = [
    triton.Config({"ROWS": rows, "COLUMNS": columns, "UNROLLED": unrolled}, num_warps=warps)
    for rows, columns, unrolled, warps in _SHAPES
]


def launch(row: Tensor, matrix: Tensor, bias: Tensor | None) -> Tensor:
    """Return the product of a row with the transposed matrix, plus a bias."""
    matrix = matrix.contiguous()
    count, width = matrix.shape
    result = row.new_empty((*row.shape[:-1], count))

    def grid(chosen: dict[str, int]) -> tuple[int]:
        return (triton.cdiv(count, chosen["ROWS"]),)

    given = row if bias is None else bias
    _product[grid](row.contiguous(), matrix, given, result, COUNT=count, WIDTH=width, HAS_BIAS=bias is not None)
    return result


@triton.autotune(configs=_CONFIGS, key=["COUNT", "WIDTH"])  # type: ignore[untyped-decorator,unused-ignore]
@triton.jit  # type: ignore[untyped-decorator,unused-ignore]
def _product(  # type: ignore[no-untyped-def]  # Triton reads annotations as values
    row, matrix, bias, result,
    COUNT: tl.constexpr, WIDTH: tl.constexpr, HAS_BIAS: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, UNROLLED: tl.constexpr,
):  # fmt: skip
    """Multiply in float32; sums over columns are added up only at the end."""
    at = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, COLUMNS)
    first = matrix + at[:, None].to(tl.int64) * WIDTH
    sums = tl.zeros([ROWS, COLUMNS], tl.float32)
    for start in tl.range(0, WIDTH, COLUMNS, loop_unroll_factor=UNROLLED):
        place = start + column
        if WIDTH % COLUMNS == 0 and COUNT % ROWS == 0:
            x = tl.load(row + place)
            w = tl.load(first + place[None, :], eviction_policy="evict_first")
        else:
            is_column = place < WIDTH
            x = tl.load(row + place, mask=is_column, other=0.0)
            inside = (at < COUNT)[:, None] & is_column[None, :]
            w = tl.load(first + place[None, :], mask=inside, other=0.0, eviction_policy="evict_first")
        sums += w.to(tl.float32) * x.to(tl.float32)[None, :]
    total = tl.sum(sums, 1)
    if HAS_BIAS:
        total += tl.load(bias + at, mask=at < COUNT, other=0.0).to(tl.float32)
    tl.store(result + at, total, mask=at < COUNT)
