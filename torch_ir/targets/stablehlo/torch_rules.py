"""Decompositions in torch of operators that torch itself does not decompose, or not exactly.

Each rule is a function of the operator's arguments. It is traced at concrete sizes and never runs on values.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear

_HALVES = (torch.float16, torch.bfloat16)
TorchRule = Any  # a function; NotImplemented leaves the operator to torch's own decomposition


def gru_cell(
    input: Tensor, hx: Tensor, w_ih: Tensor, w_hh: Tensor, b_ih: Tensor | None = None, b_hh: Tensor | None = None
) -> Tensor:
    reset, update, new = linear(input, w_ih, b_ih).chunk(3, 1)
    old_reset, old_update, old_new = linear(hx, w_hh, b_hh).chunk(3, 1)
    gate = (update + old_update).sigmoid()
    candidate = (new + (reset + old_reset).sigmoid() * old_new).tanh()
    return (hx - candidate) * gate + candidate


def embedding_bag(
    weight: Tensor,
    indices: Tensor,
    offsets: Tensor,
    scale_grad_by_freq: bool = False,
    mode: int = 0,
    sparse: bool = False,
    per_sample_weights: Tensor | None = None,
    include_last_offset: bool = False,
    padding_idx: int | None = None,
) -> Any:
    """Sums and means of bags; the other outputs are for gradients."""
    if mode not in (0, 1) or padding_idx not in (None, -1) or indices.dim() != 1:  # -1 is None inside torch
        return NotImplemented
    starts = offsets[:-1] if include_last_offset else offsets
    places = torch.arange(indices.shape[0], dtype=offsets.dtype, device=offsets.device)
    bags = (places[:, None] >= starts[None, :]).sum(1) - 1
    rows = torch.nn.functional.embedding(indices, weight)
    if per_sample_weights is not None:
        rows = rows * per_sample_weights[:, None]
    total = torch.zeros(starts.shape[0], weight.shape[1], dtype=weight.dtype, device=weight.device)
    total = total.index_add(0, bags, rows)
    ones = torch.ones(indices.shape[0], dtype=torch.int64, device=indices.device)
    sizes = torch.zeros(starts.shape[0], dtype=torch.int64, device=indices.device).index_add(0, bags, ones)
    if mode == 1:
        total = total / sizes.clamp(min=1)[:, None].to(weight.dtype)
    return total, bags.to(indices.dtype), sizes.to(indices.dtype), offsets * 0


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    """Attention in float32 for half-precision numbers; queries that see nothing return zeros."""
    if dropout_p:
        return NotImplemented
    q, k, v = (each.float() if each.dtype in _HALVES else each for each in (query, key, value))
    if enable_gqa:
        k, v = (each.repeat_interleave(q.shape[-3] // each.shape[-3], -3) for each in (k, v))
    scores = torch.matmul(q, k.transpose(-2, -1)) * (q.shape[-1] ** -0.5 if scale is None else scale)
    if is_causal:
        ones = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool, device=q.device)
        scores = scores.masked_fill(~ones.tril(), -torch.inf)
    if attn_mask is None:
        return torch.matmul(torch.softmax(scores, -1), v).to(query.dtype)
    if attn_mask.dtype == torch.bool:
        scores = torch.where(attn_mask, scores, -torch.inf)
    else:
        scores = scores + attn_mask.to(scores.dtype)
    hidden = (scores == -torch.inf).all(-1, keepdim=True)
    weights = torch.where(hidden, 0.0, torch.softmax(scores, -1))
    return torch.matmul(weights, v).to(query.dtype)


def masked_scatter(self: Tensor, mask: Tensor, source: Tensor) -> Tensor:
    """Write the next element of the source wherever the mask is true."""
    self = torch.where(mask, self, self)  # broadcast
    mask = mask.expand_as(self)
    places = mask.reshape(-1).to(torch.int64).cumsum(0) - 1
    values = source.reshape(-1)[places.clamp(0, source.numel() - 1)].reshape(self.shape)
    return torch.where(mask, values, self)


def as_strided(self: Tensor, size: list[int], stride: list[int], storage_offset: int | None = None) -> Any:
    """Read a dense tensor's elements in the order of its memory, as it was laid out in the model."""
    order = sorted(range(self.dim()), key=lambda dim: (-self.stride()[dim], dim))
    flat = self.permute(order)
    reach = sum((count - 1) * step for count, step in zip(size, stride, strict=True))
    if storage_offset is not None or not flat.is_contiguous() or 0 in size or reach >= self.numel():
        return NotImplemented
    places = torch.zeros(size, dtype=torch.int64, device=self.device)
    for dim, (count, step) in enumerate(zip(size, stride, strict=True)):
        line = torch.arange(count, dtype=torch.int64, device=self.device) * step
        places = places + line.reshape([-1 if at == dim else 1 for at in range(len(size))])
    return flat.reshape(-1)[places]


def cosine_similarity(x1: Tensor, x2: Tensor, dim: int = 1, eps: float = 1e-8) -> Tensor:
    one, other = (each / each.square().sum(dim, keepdim=True).sqrt().clamp(min=eps) for each in (x1, x2))
    return (one * other).sum(dim)


def trilinear(
    i1: Tensor,
    i2: Tensor,
    i3: Tensor,
    expand1: list[int],
    expand2: list[int],
    expand3: list[int],
    sumdim: list[int],
    unroll_dim: int = 1,
) -> Tensor:
    """Multiply three tensors, with new dimensions at the given places, and sum over others."""
    parts = []
    for tensor, places in ((i1, expand1), (i2, expand2), (i3, expand3)):
        for place in sorted(places):
            tensor = tensor.unsqueeze(place)
        parts.append(tensor)
    return (parts[0] * parts[1] * parts[2]).sum(sumdim)


def pad_circular(self: Tensor, pad: list[int]) -> Tensor:
    """Continue the last dimensions with their own other ends; negative amounts cut them."""
    value = self
    for at in range(len(pad) // 2):
        dim = self.dim() - 1 - at
        places = torch.arange(-pad[2 * at], self.shape[dim] + pad[2 * at + 1], dtype=torch.int64, device=self.device)
        value = value.index_select(dim, places.remainder(self.shape[dim]))
    return value


def is_close(self: Tensor, other: Tensor, rtol: float = 1e-05, atol: float = 1e-08, equal_nan: bool = False) -> Tensor:
    close = self == other
    if equal_nan and self.is_floating_point():
        close = close | (self.isnan() & other.isnan())
    if rtol == 0 and atol == 0:
        return close
    gap = (self - other).abs()
    return close | (gap.isfinite() & (gap <= atol + (rtol * other).abs()))


def log_sigmoid(self: Tensor) -> Tensor:
    """min(x, 0) - log(1 + exp(-|x|)), without the rounding of exp(x) + 1."""
    return torch.minimum(self, torch.zeros_like(self)) - torch.log1p(torch.exp(-self.abs()))


TORCH_RULES: dict[str, TorchRule] = {
    "aten.gru_cell.default": gru_cell,
    "aten.embedding_bag.default": embedding_bag,
    "aten.embedding_bag.padding_idx": embedding_bag,
    "aten._embedding_bag.default": embedding_bag,
    "aten._embedding_bag_forward_only.default": embedding_bag,
    "aten.scaled_dot_product_attention.default": attention,
    "aten.masked_scatter.default": masked_scatter,
    "aten.as_strided.default": as_strided,
    "aten._pad_circular.default": pad_circular,
    "aten.cosine_similarity.default": cosine_similarity,
    "aten._trilinear.default": trilinear,
    "aten.isclose.default": is_close,
    "aten.log_sigmoid.default": log_sigmoid,
}
