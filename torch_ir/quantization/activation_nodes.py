"""The nodes that quantise the input of a layer and restore it, by observed ranges or by those of each run.

    static    x1 = dequantize_per_tensor(quantize_per_tensor(x, 0.02, 128), 0.02, 128)
    dynamic   s = amax(abs(x), -1) / 127;  x1 = dequantize_per_token(quantize_per_token(x, s, 0), s, 0)

A dynamic range is that of one token, the elements that a product sums over; of the whole tensor for a convolution.
"""

from __future__ import annotations

from torch_ir.ir import Dtype, TensorMeta
from torch_ir.quantization.layers import Kind
from torch_ir.quantization.recipe import FP8, Scheme
from torch_ir.quantization.weight_nodes import (
    FLOATS,
    FP8_MAX,
    LEAST_SCALE,
    Integers,
    scale_of,
    scales_with_zeros,
    to_fp8,
)
from torch_ir.rewrite import Builder

_Q = "quantized_decomposed."
# the whole range, as QuantizeLinear of ONNX has it
_INTEGERS = {"uint8": Integers("uint8", 0, 255), "int8": Integers("int8", -128, 127)}
Range = tuple[float, float]  # the lowest and the highest value


def activation_objection(tensor: TensorMeta) -> str:
    """Return why the input of a layer cannot be quantised, or ""."""
    return "" if tensor.dtype in FLOATS else f"its input is {tensor.dtype}"


def quantize_activation(g: Builder, tensor: TensorMeta, kind: Kind, scheme: Scheme, range_: Range | None) -> TensorMeta:
    """Add the nodes that round a tensor to the scheme's activation dtype; return the restored tensor."""
    wide = g.cast(tensor, "float32")
    if scheme.activation == FP8:
        found = _rounded_to_fp8(g, wide, kind, range_)
    else:
        found = _dynamic(g, wide, kind, scheme) if range_ is None else _static(g, wide, scheme, range_)
    return g.cast(found, tensor.dtype)


def _static(g: Builder, tensor: TensorMeta, scheme: Scheme, range_: Range) -> TensorMeta:
    low, high = min(range_[0], 0.0), max(range_[1], 0.0)
    integers = _INTEGERS[str(scheme.activation)]
    if scheme.activation == "int8":
        scale, zero = max(-low, high) / integers.high, 0
    else:
        scale = (high - low) / (integers.high - integers.low)
        zero = min(max(integers.low - round(low / scale), integers.low), integers.high) if scale else integers.low
    common = {"scale": scale or LEAST_SCALE, "zero_point": zero, **integers.arguments}
    rounded = g.op(f"{_Q}quantize_per_tensor.default", input=tensor, **common)
    return g.op(f"{_Q}dequantize_per_tensor.default", input=rounded, **common)


def _dynamic(g: Builder, tensor: TensorMeta, kind: Kind, scheme: Scheme) -> TensorMeta:
    scales, zeros = _measured(g, tensor, kind, scheme)
    form = "per_token.default" if kind.by_token else "per_tensor.tensor"
    names = ("scales", "zero_points") if kind.by_token else ("scale", "zero_point")
    common = {names[0]: scales, names[1]: zeros, **_INTEGERS[str(scheme.activation)].arguments}
    rounded = g.op(f"{_Q}quantize_{form}", input=tensor, **common)
    out = {"output_dtype": Dtype("float32")} if kind.by_token else {}
    return g.op(f"{_Q}dequantize_{form}", input=rounded, **common, **out)


def _measured(g: Builder, tensor: TensorMeta, kind: Kind, scheme: Scheme) -> tuple[TensorMeta, TensorMeta]:
    """Return scales and zero points: one for each token, or one for the tensor."""
    integers = _INTEGERS[str(scheme.activation)]
    whole = "int32" if kind.by_token else "int64"
    if scheme.activation == "int8":
        scales = scale_of(g, _largest(g, tensor, kind), integers.high)
        return scales, g.op("aten.zeros_like.default", self=scales, dtype=Dtype(whole))
    lowest, highest = (_extreme(g, name, tensor, kind) for name in ("amin", "amax"))
    scales, zeros = scales_with_zeros(g, lowest, highest, integers)
    return scales, g.cast(zeros, whole)


def _rounded_to_fp8(g: Builder, tensor: TensorMeta, kind: Kind, range_: Range | None) -> TensorMeta:
    if range_ is not None:
        scale = max(-range_[0], range_[1]) / FP8_MAX or LEAST_SCALE
        bounded = g.op("aten.div.Scalar", self=tensor, other=scale)
        bounded = g.op("aten.clamp.default", self=bounded, min=-FP8_MAX, max=FP8_MAX)
        back = g.cast(g.cast(bounded, FP8), "float32")
        return g.op("aten.mul.Scalar", self=back, other=scale)
    scales = scale_of(g, _largest(g, tensor, kind), FP8_MAX)
    back = g.cast(to_fp8(g, tensor, scales), "float32")
    return g.op("aten.mul.Tensor", self=back, other=scales)


def _largest(g: Builder, tensor: TensorMeta, kind: Kind) -> TensorMeta:
    return _extreme(g, "amax", g.op("aten.abs.default", self=tensor), kind)


def _extreme(g: Builder, name: str, tensor: TensorMeta, kind: Kind) -> TensorMeta:
    """Return the lowest or highest element of each token, or of the tensor, as one element."""
    if kind.by_token:
        return g.op(f"aten.{name}.default", self=tensor, dim=[-1], keepdim=True)
    found = g.op(f"aten.{name}.default", self=tensor, dim=list(range(len(tensor.shape))))
    return g.op("aten.reshape.default", self=found, shape=[1])
