"""Rewrites of operators that torch's ONNX exporter translates wrongly into operators that it translates correctly.

Each rule is a function of the operator's arguments. It is traced at concrete sizes and never runs on values.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import log, prod
from typing import Any

import torch
from torch import Tensor

from torch_ir.ir import OpNode
from torch_ir.ops.own_decompositions import GROUPED
from torch_ir.passes.decompose.quantized_rules import QUANTIZED
from torch_ir.passes.decompose.rewriting import Rule
from torch_ir.targets.stablehlo.torch_rules import log_sigmoid

_aten = torch.ops.aten
_LINEAR = "quantized_decomposed.dequantize_per_channel.default"  # it becomes DequantizeLinear


def attention(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, *given: Any, **options: Any
) -> Any:
    """Return zeros for fully masked queries, where runtimes return a mean of all values, or NaN."""
    return NotImplemented if attn_mask is None else masked_attention(query, key, value, attn_mask, *given, **options)


def masked_attention(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, *given: Any, **options: Any
) -> Tensor:
    """Compute attention with zeros for fully masked queries."""
    made: Tensor = _aten.scaled_dot_product_attention.default(query, key, value, attn_mask, *given, **options)
    if attn_mask is None:
        return made
    seen = attn_mask if attn_mask.dtype == torch.bool else attn_mask != -torch.inf
    return torch.where(seen.any(-1, keepdim=True), made, 0.0)


def batch_norm(
    input: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
    cudnn_enabled: bool,
) -> Any:
    """Batch norm with the statistics of the batch."""
    return _normalised(input, weight, bias, eps)[0] if training else NotImplemented


def functional_batch_norm(
    input: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor,
    running_var: Tensor,
    training: bool,
    momentum: float,
    eps: float,
) -> Any:
    """Batch norm in training, with its saved and updated statistics."""
    if not training:
        return NotImplemented
    made, mean, var = _normalised(input, weight, bias, eps)
    count = input.numel() // input.shape[1]
    new_mean = running_mean * (1 - momentum) + mean * momentum
    new_var = running_var * (1 - momentum) + var * (momentum * count / max(1, count - 1))
    return made, mean, torch.rsqrt(var + eps), new_mean, new_var


def _normalised(input: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    """Return the normalised input, and the mean and biased variance per channel."""
    around = [dim for dim in range(input.dim()) if dim != 1]
    channels = [-1 if dim == 1 else 1 for dim in range(input.dim())]
    wide = input.float() if input.dtype in (torch.float16, torch.bfloat16) else input
    mean = wide.mean(around)
    var = (wide - mean.reshape(channels)).square().mean(around)
    made = (wide - mean.reshape(channels)) * torch.rsqrt(var + eps).reshape(channels)
    if weight is not None:
        made = made * weight.reshape(channels)
    if bias is not None:
        made = made + bias.reshape(channels)
    return made.to(input.dtype), mean, var


def _in_dtype(operator: Any) -> Rule:
    """Return a softmax rule that converts its input to `dtype` first; runtimes convert the result."""

    def rule(self: Tensor, dim: int, dtype: torch.dtype | None = None) -> Any:
        return NotImplemented if dtype in (None, self.dtype) else operator(self.to(dtype), dim)

    return rule


def _mean_in_dtype(self: Tensor, *args: Any, dtype: torch.dtype | None = None) -> Any:
    """Convert to `dtype` first; the exporter converts the mean, which of integers is one."""
    return NotImplemented if dtype in (None, self.dtype) else torch.mean(self.to(dtype), *args)


def _by_divisor(operator: Any, dims: int) -> Rule:
    """Return a rule for average pooling with `divisor_override`, which ONNX lacks."""

    def rule(
        self: Tensor,
        kernel_size: Sequence[int],
        stride: Sequence[int] = (),
        padding: Sequence[int] = (0,),
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: int | None = None,
    ) -> Any:
        if divisor_override is None or ceil_mode:
            return NotImplemented
        area = prod(kernel_size) if len(kernel_size) > 1 else kernel_size[0] ** dims
        return operator(self, kernel_size, stride, padding, False, True) * (area / divisor_override)

    return rule


# -- losses and scatters ----------------------------------------------------------------------------------------------


def cross_entropy(
    self: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    reduction: int = 1,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
) -> Any:
    """Cross entropy with smoothed labels, for class indices."""
    if label_smoothing == 0.0 or target.is_floating_point():
        return NotImplemented
    channel = 1 if self.dim() > 1 else 0
    logs = torch.log_softmax(self, channel)
    hard = _aten.nll_loss_nd.default(logs, target, weight, reduction, ignore_index)
    kept = target != ignore_index
    shape = [-1 if dim == channel else 1 for dim in range(self.dim())]
    spread = -(logs if weight is None else logs * weight.reshape(shape)).sum(channel)
    spread = torch.where(kept, spread, 0.0)
    if reduction == 1:
        if weight is None:
            count = kept.sum().to(self.dtype)
        else:
            count = torch.where(kept, weight[torch.where(kept, target, 0)], 0.0).sum()
        spread = spread.sum() / count
    elif reduction == 2:
        spread = spread.sum()
    smooth = label_smoothing / self.shape[channel]
    return (1 - label_smoothing) * hard + smooth * spread


def scatter_mean(self: Tensor, dim: int, index: Tensor, src: Tensor, reduce: str, *, include_self: bool = True) -> Any:
    """Compute a mean as a sum and a count."""
    if reduce != "mean" or not self.is_floating_point():
        return NotImplemented
    part = src[tuple(slice(0, size) for size in index.shape)]
    start, counts = self, torch.ones_like(self)
    if not include_self:
        is_met = torch.zeros_like(self).scatter(dim, index, torch.ones_like(part)) > 0
        start, counts = torch.where(is_met, 0.0, self), torch.where(is_met, 0.0, counts)
    total = start.scatter_add(dim, index, part)
    return total / counts.scatter_add(dim, index, torch.ones_like(part))


# -- numbers that are not exact in float32 ----------------------------------------------------------------------------


def _logarithm(base: float) -> Rule:
    """Return a rule that divides natural logarithms of float64 by a constant, which the exporter rounds to float32."""

    def rule(self: Tensor) -> Any:
        return self.log() / log(base) if self.dtype == torch.float64 else NotImplemented

    return rule


def arange(start: Any, end: Any, step: Any = 1, *, dtype: torch.dtype | None = None, **options: Any) -> Any:
    """Return steps in float64, which the exporter counts in float32."""
    if dtype != torch.float64:
        return NotImplemented
    count = _aten.arange.start_step(start, end, step, dtype=dtype).numel()
    return start + step * torch.arange(count, dtype=torch.int64).to(torch.float64)


NORMS: dict[str, Rule] = {
    "aten.batch_norm.default": batch_norm,
    "aten._native_batch_norm_legit_functional.default": functional_batch_norm,
}
SOFTMAX: dict[str, Rule] = {
    "aten.softmax.int": _in_dtype(_aten.softmax.int),
    "aten.log_softmax.int": _in_dtype(_aten.log_softmax.int),
}
EXPORTED: dict[str, Rule] = {
    **GROUPED,
    "aten.scaled_dot_product_attention.default": attention,
    **SOFTMAX,
    **NORMS,
    "aten.cross_entropy_loss.default": cross_entropy,
    "aten.log_sigmoid.default": log_sigmoid,
    "aten.mean.dim": _mean_in_dtype,
    "aten.mean.default": _mean_in_dtype,
    "aten.avg_pool2d.default": _by_divisor(_aten.avg_pool2d.default, 2),
    "aten.avg_pool3d.default": _by_divisor(_aten.avg_pool3d.default, 3),
    "aten.scatter_reduce.two": scatter_mean,
    "aten.log2.default": _logarithm(2.0),
    "aten.log10.default": _logarithm(10.0),
    "aten.arange.start_step": arange,
    **{name: rule for name, rule in QUANTIZED.items() if name != _LINEAR},
}


def _ignores_divisor(node: OpNode) -> bool:
    return bool(node["ceil_mode"]) and node["divisor_override"] is not None


# operators that no rule repairs: when the translation is another function, and what it does
MISTRANSLATED: dict[str, tuple[Callable[[OpNode], bool], str]] = {
    **{
        f"aten.{name}.default": (
            lambda node: bool(node["keepdim"]) and not node["dim"] and node["dim"] != 0,
            "would drop dimensions that keepdim keeps",
        )
        for name in ("argmax", "argmin", "linalg_norm", "linalg_vector_norm")
    },
    "aten.scaled_dot_product_attention.default": (
        lambda node: node["dropout_p"] > 0 or (node["scale"] or 0) < 0,
        "would ignore dropout_p, or take the root of a negative scale",
    ),
    "aten.elu.default": (lambda node: node["input_scale"] != 1, "would scale positive inputs by input_scale"),
    "aten.multinomial.default": (
        lambda node: not node["replacement"] and node["num_samples"] != 1,
        "would draw with replacement",
    ),
    "aten.avg_pool2d.default": (_ignores_divisor, "would ignore divisor_override"),
    "aten.avg_pool3d.default": (_ignores_divisor, "would ignore divisor_override"),
}

_COMPLEX_FILLS = ("aten.full.", "aten.ones.", "aten.zeros.", "aten.scalar_tensor.")


def complex_problem(node: OpNode) -> str:
    """Return what torch.onnx would write wrongly for a node that makes complex numbers; empty if nothing."""
    kinds = {tensor.dtype for tensor in node.outputs if tensor.dtype.startswith("complex")}
    if not kinds:
        return ""
    if node.op_type.startswith(_COMPLEX_FILLS):
        return "would fill with numbers that are not complex"
    if isinstance(node.attrs.get("alpha"), complex):
        return "would ignore the imaginary part of alpha"
    if "complex128" in kinds and any(isinstance(value, complex) for value in node.attrs.values()):
        return "would write a complex number of single precision"
    return ""
