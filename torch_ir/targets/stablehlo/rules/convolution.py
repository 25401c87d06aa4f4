"""Convolutions, transposed ones too."""

from __future__ import annotations

from collections.abc import Sequence

from torch_ir.errors import ConversionError
from torch_ir.passes.weights.affine import each
from torch_ir.targets.stablehlo.operations import Builder, Value, integers
from torch_ir.targets.stablehlo.rules.elementwise_rules import Made
from torch_ir.targets.stablehlo.rules.rule_table import lowers


@lowers("aten.convolution.default")
def convolution(
    hlo: Builder,
    made: Made,
    input: Value,
    weight: Value,
    bias: Value | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
) -> Value:
    count = len(weight.shape) - 2
    steps, pads, gaps, more = (each(given, count) for given in (stride, padding, dilation, output_padding))
    value, kernel = hlo.wide(input), hlo.wide(weight)
    if is_unbatched := len(input.shape) == count + 1:
        value = hlo.reshape(value, (1, *value.shape))
    sizes = kernel.shape[2:]
    if any(isinstance(size, str) for size in sizes):
        raise ConversionError("the kernel has a dynamic size")
    reach = [gap * (int(size) - 1) for gap, size in zip(gaps, sizes, strict=True)]
    if transposed:
        kernel = _turned(hlo, kernel, groups)
        window = [[far - pad, far - pad + extra] for far, pad, extra in zip(reach, pads, more, strict=True)]
        result = _convolve(hlo, made, value, kernel, [1] * count, window, steps, gaps, groups, is_unbatched)
    else:
        window = [[pad, pad] for pad in pads]
        result = _convolve(hlo, made, value, kernel, steps, window, [1] * count, gaps, groups, is_unbatched)
    if bias is not None:
        result = hlo.pointwise("add", result, hlo.broadcast(hlo.convert(bias, result.dtype), result.shape, [1]))
    return hlo.reshape(hlo.convert(result, made[0].dtype), made[0].shape)


def _turned(hlo: Builder, kernel: Value, groups: int) -> Value:
    """Return the kernel of a transposed convolution as that of a plain one: reversed, its channels exchanged."""
    taken, given, *rest = kernel.shape
    inner, outer = int(taken) // groups, int(given)
    grouped = hlo.reshape(kernel, (groups, inner, outer, *rest))
    order = [0, 2, 1, *range(3, 3 + len(rest))]
    swapped = hlo.reshape(hlo.transpose(grouped, order), (groups * outer, inner, *rest))
    attrs = f"dimensions = {integers(range(2, 2 + len(rest)))}"
    return hlo.emit("reverse", [swapped], swapped.shape, swapped.dtype, attrs)


def _convolve(
    hlo: Builder, made: Made, value: Value, kernel: Value, steps: list[int], pads: list[list[int]], spaces: list[int],
    gaps: list[int], groups: int, is_unbatched: bool,
) -> Value:  # fmt: skip
    places = ", ".join(map(str, range(len(steps))))
    listed = ", ".join(f"[{low}, {high}]" for low, high in pads)
    pad_type = f"tensor<{len(pads)}x2xi64>"
    attrs = ", ".join(
        [
            f"window_strides = {integers(steps)}",
            f"padding = dense<[{listed}]> : {pad_type}",
            f"lhs_dilation = {integers(spaces)}",
            f"rhs_dilation = {integers(gaps)}",
            f"dimension_numbers = #stablehlo.conv<[b, f, {places}]x[o, i, {places}]->[b, f, {places}]>",
            f"feature_group_count = {groups} : i64",
            "batch_group_count = 1 : i64",
        ]
    )
    shape = (1, *made[0].shape) if is_unbatched else made[0].shape
    return hlo.emit("convolution", [value, kernel], shape, value.dtype, attrs)
