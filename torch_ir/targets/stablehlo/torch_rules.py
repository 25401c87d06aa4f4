"""Decompositions in torch of operators that torch itself does not decompose, or not exactly.

Each rule is a function of the operator's arguments. It is traced at concrete sizes and never runs on values.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear

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


def log_sigmoid(self: Tensor) -> Tensor:
    """min(x, 0) - log(1 + exp(-|x|))."""
    return torch.minimum(self, torch.zeros_like(self)) - torch.log1p(torch.exp(-self.abs()))


TORCH_RULES: dict[str, TorchRule] = {
    "aten.gru_cell.default": gru_cell,
    "aten.embedding_bag.default": embedding_bag,
    "aten.embedding_bag.padding_idx": embedding_bag,
    "aten._embedding_bag.default": embedding_bag,
    "aten._embedding_bag_forward_only.default": embedding_bag,
    "aten.log_sigmoid.default": log_sigmoid,
}
