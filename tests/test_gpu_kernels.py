"""The kernels for a GPU against torch in float64. They run only where torch finds a GPU."""

import pytest
import torch
from torch import Tensor
from torch.nn.functional import linear, scaled_dot_product_attention

from torch_ir.backends.gpu import decode_attention, row_product  # noqa: F401  # they register the operators

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU that torch can use")
PRECISION = {torch.bfloat16: 2.0**-7, torch.float16: 2.0**-10, torch.float32: 2.0**-22}  # of a result, with its sums
HALVES = [torch.bfloat16, torch.float16]
SHAPES = [(1, 32, 8, 1024, 64), (2, 8, 8, 300, 16), (3, 12, 2, 4096, 128), (1, 4, 1, 1, 256)]


def _random(*shape: int, dtype: torch.dtype) -> Tensor:
    return torch.randn(*shape, device="cuda", dtype=dtype)


def _mask(kind: str, batch: int, length: int) -> Tensor | None:
    """Return no mask, one for each sequence, one for all of them, or one that hides everything."""
    place = torch.arange(length, device="cuda")
    seen = torch.tensor([length // 3 + 7 * number for number in range(batch)], device="cuda")
    masks = {"none": None, "each": place < seen[:, None], "shared": place[None] < 70, "nothing": place[None] < 0}
    mask = masks[kind]
    return None if mask is None else mask[:, None, None]


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("mask", ["none", "each", "shared", "nothing"])
@pytest.mark.parametrize("shape", SHAPES)
def test_attention_of_one_token(shape: tuple[int, ...], mask: str, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    batch, heads, pairs, length, width = shape
    query = _random(batch, heads, 1, width, dtype=dtype)
    key, value = (_random(batch, pairs, length, width, dtype=dtype) for _ in range(2))
    seen = _mask(mask, batch, length)
    found = torch.ops.torch_ir.decode_attention(query, key, value, seen, 0.1)
    wide = (each.double() for each in (query, key, value))
    expected = scaled_dot_product_attention(*wide, seen, scale=0.1, enable_gqa=heads != pairs).nan_to_num()
    torch.testing.assert_close(found.double(), expected, rtol=0, atol=PRECISION[dtype] * float(value.abs().max()))


@pytest.mark.parametrize("dtype", PRECISION)
@pytest.mark.parametrize(("columns", "depth"), [(3072, 2048), (1000, 1500), (128256, 64)])
def test_product_of_one_row(columns: int, depth: int, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    row, matrix, bias = (_random(*shape, dtype=dtype) for shape in ((1, 1, depth), (columns, depth), (columns,)))
    found = torch.ops.torch_ir.row_product(row, matrix, bias)
    expected = linear(row.double(), matrix.double(), bias.double())
    torch.testing.assert_close(found.double(), expected, rtol=0, atol=PRECISION[dtype] * float(expected.abs().max()))
