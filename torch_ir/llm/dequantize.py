"""Dequantisation of each checkpoint format, in plain tensor operators: recorded as nodes, never called on weights.

Each function takes the tensors of a weight as `quantized.py` lists them, and returns the weight that the model has.
Functions of formats with `takes_stacks` also take the tensors of several weights, each stacked.
"""

from __future__ import annotations

import torch
from torch import Tensor

_INT8_STEP = 7.874015718698502e-3  # 1 / 127 as bitsandbytes writes it


def fp8(weight: Tensor, scale: Tensor, *, dtype: torch.dtype, block: tuple[int, int] | None = None) -> Tensor:
    """Multiply by one scale for each block of rows and columns, or by a scale that broadcasts, in float32."""
    wide, scale = weight.to(torch.float32), scale.to(torch.float32)
    if block is None:
        if 0 < scale.dim() < weight.dim():  # one for each weight of a stack
            scale = scale.reshape(-1, *[1] * (weight.dim() - 1))
        return (wide * scale).to(dtype)
    return (wide * _over_blocks(scale, block, weight)).to(dtype)


def mxfp4(blocks: Tensor, scales: Tensor, *, dtype: torch.dtype) -> Tensor:
    """Decode the experts of gpt-oss, stored by output row: 32 values and a power of two for each block."""
    values = _e2m1(_nibbles(blocks)).flatten(-2)
    power = torch.pow(2.0, scales.to(torch.int32) - 127)
    rows = (values * power.unsqueeze(-1)).to(torch.bfloat16).flatten(-2)
    return rows.transpose(1, 2).contiguous().to(dtype)


def nvfp4(packed: Tensor, scale: Tensor, second: Tensor, *, dtype: torch.dtype, divide: bool) -> Tensor:
    """Decode 16 values for each fp8 scale; the second scale, of the whole tensor, multiplies or divides the first."""
    first, second = scale.to(torch.float32), second.to(torch.float32)
    factor = first / second if divide else first * second
    values = _e2m1(_nibbles(packed)).flatten(-2).unflatten(-1, (-1, 16))
    product = (values * factor.unsqueeze(-1)).flatten(-2)
    result: Tensor = product.to(torch.bfloat16) if divide else product
    return result.to(dtype)


def gptq(
    qweight: Tensor, qzeros: Tensor, scales: Tensor, g_idx: Tensor, *, dtype: torch.dtype, bits: int, offset: int
) -> Tensor:
    """Unpack words of several inputs each; `g_idx` is the group of each input, `offset` is added to zero points."""
    weight = _unpacked(qweight.t(), bits).t()
    zeros = (_unpacked(qzeros, bits) + offset) & (2**bits - 1)
    group = g_idx.to(torch.int64)
    rows: Tensor = scales.index_select(0, group) * (weight - zeros.index_select(0, group))
    return rows.t().to(dtype).contiguous()


def awq(qweight: Tensor, qzeros: Tensor, scales: Tensor, *, dtype: torch.dtype) -> Tensor:
    """Unpack words of eight outputs each, in the order 0, 2, 4, 6, 1, 3, 5, 7 of the GEMM layout."""
    zeros = _awq_order(qzeros).unsqueeze(1)
    weight = _awq_order(qweight).unflatten(0, (zeros.shape[0], -1))
    rows: Tensor = ((weight - zeros) * scales.unsqueeze(1)).flatten(0, 1)
    return rows.t().to(dtype).contiguous()


def int8_rows(weight: Tensor, scale: Tensor, *, dtype: torch.dtype) -> Tensor:
    """Multiply each row by its largest magnitude / 127, as bitsandbytes does."""
    return (weight * scale.view(-1, 1) * _INT8_STEP).to(dtype)


def blocks_4bit(
    packed: Tensor, absmax: Tensor, values: Tensor, *, dtype: torch.dtype, shape: tuple[int, ...], block: int
) -> Tensor:
    """Look up 4-bit codes in a table and multiply by the largest magnitude of their block (nf4, fp4)."""
    codes = torch.stack([packed >> 4, packed & 15], dim=-1).flatten()
    found = values.index_select(0, codes.to(torch.int32)).view(-1, block)
    return (found * absmax.view(-1, 1)).view(shape).to(dtype)


def blocks_4bit_nested(
    packed: Tensor,
    absmax: Tensor,
    values: Tensor,
    nested_absmax: Tensor,
    nested_values: Tensor,
    offset: Tensor,
    *,
    dtype: torch.dtype,
    shape: tuple[int, ...],
    block: int,
    nested_block: int,
) -> Tensor:
    """Decode the magnitudes of blocks first, which are themselves quantised in blocks (double quantisation)."""
    found = nested_values.index_select(0, absmax.to(torch.int32))
    outer = nested_absmax.repeat_interleave(nested_block)[: absmax.shape[0]]
    return blocks_4bit(packed, found * outer + offset, values, dtype=dtype, shape=shape, block=block)


def affine(
    weight: Tensor, scale: Tensor, zero: Tensor | None = None, *, dtype: torch.dtype, block: tuple[int, int] | None
) -> Tensor:
    """Return `(weight - zero) * scale` in the dtype of the scale, which broadcasts or is by block."""
    if block is not None:
        scale = _over_blocks(scale, block, weight)
        zero = None if zero is None else _over_blocks(zero, block, weight)
    wide = weight.to(scale.dtype)
    return ((wide if zero is None else wide - zero.to(scale.dtype)) * scale).to(dtype)


def packed_affine(
    packed: Tensor,
    scale: Tensor,
    zero: Tensor | None = None,
    *,
    dtype: torch.dtype,
    bits: int,
    shape: tuple[int, int],
    group: int,
) -> Tensor:
    """Unpack int32 words along the inputs (zero points: along the outputs), then as `affine` by group."""
    middle = 2 ** (bits - 1)
    weight = (_unpacked(packed, bits)[..., : shape[1]] - middle).to(torch.int8)
    zeros = None if zero is None else (_unpacked(zero.t(), bits)[:, : shape[0]] - middle).t()
    return affine(weight, scale, zeros, dtype=dtype, block=(1, group))


def _over_blocks(scale: Tensor, block: tuple[int, int], weight: Tensor) -> Tensor:
    """Repeat each scale over its block; blocks at the border may be incomplete."""
    rows, columns = weight.shape[-2:]
    if block[0] > 1:
        scale = scale.repeat_interleave(block[0], dim=-2)[..., :rows, :]
    return scale.repeat_interleave(block[1], dim=-1)[..., :columns]


def _nibbles(packed: Tensor) -> Tensor:
    """Split bytes into two codes each, the low one first."""
    return torch.stack([packed & 15, packed >> 4], dim=-1)


def _e2m1(codes: Tensor) -> Tensor:
    """Decode FP4: twice the magnitudes are 0 1 2 3 4 6 8 12, in steps of 1, then 2, then 4; bit 3 is the sign."""
    magnitude = (codes & 7).to(torch.float32)
    doubled = magnitude + (magnitude - 4).clamp(min=0) + 2 * (magnitude - 6).clamp(min=0)
    return doubled * 0.5 * (1 - 2 * (codes >> 3).to(torch.float32))


def _unpacked(words: Tensor, bits: int) -> Tensor:
    """Split int32 words along the last dimension, low bits first."""
    shifts = torch.arange(0, 32, bits, dtype=torch.int32, device=words.device)
    codes: Tensor = (words.unsqueeze(-1) >> shifts) & (2**bits - 1)
    return codes.flatten(-2)


def _awq_order(words: Tensor) -> Tensor:
    """Unpack 4-bit codes whose order in a word is 0, 2, 4, 6, 1, 3, 5, 7."""
    codes: Tensor = _unpacked(words, 4).unflatten(-1, (-1, 2, 4))
    return codes.transpose(-1, -2).flatten(-3)
