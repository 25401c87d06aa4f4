"""Comparison of tensors with tolerances."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

# dtype -> (relative, absolute at scale 1); integers and bools are compared exactly
_TOLERANCES: dict[torch.dtype, tuple[float, float]] = {
    torch.float64: (1e-9, 1e-9),
    torch.float32: (1e-5, 1e-5),
    torch.float16: (1e-3, 1e-3),
    torch.bfloat16: (8e-3, 8e-3),
    torch.complex128: (1e-9, 1e-9),
    torch.complex64: (1e-5, 1e-5),
    torch.complex32: (1e-3, 1e-3),
}


@dataclass(frozen=True)
class Difference:
    """The difference of two values; `reason` is empty if they are close enough."""

    reason: str = ""
    max_diff: float = 0.0
    mean_diff: float = 0.0


def tolerances(dtype: torch.dtype) -> tuple[float, float]:
    """Return the default tolerances of a dtype: relative, and absolute at scale 1."""
    return _TOLERANCES.get(dtype, (0.07, 0.07) if dtype.is_floating_point else (0.0, 0.0))


def compare(expected: Any, actual: Any, rtol: float | None = None, atol: float | None = None) -> Difference:
    """Compare dtype, shape, special values and then every element.

    By default, the absolute tolerance scales with the expected values, so that tiny outputs that are all wrong do not
    pass.
    """
    if not isinstance(expected, torch.Tensor) or not isinstance(actual, torch.Tensor):
        return _compare_values(expected, actual)
    if expected.shape != actual.shape:
        return _apart(f"shape {list(actual.shape)} instead of {list(expected.shape)}")
    if expected.dtype != actual.dtype:
        return _apart(f"dtype {actual.dtype} instead of {expected.dtype}")
    if expected.layout != torch.strided or actual.layout != torch.strided:
        if expected.layout != actual.layout:
            return _apart(f"layout {actual.layout} instead of {expected.layout}")
        expected, actual = expected.to_dense(), actual.to_dense()
    if expected.is_quantized:
        expected, actual = expected.dequantize(), actual.dequantize()
    if expected.numel() == 0:
        return Difference()
    if expected.is_floating_point() and torch.equal(expected, actual):  # the common case, without extra memory
        return Difference()
    if not (expected.is_floating_point() or expected.is_complex()):
        return _compare_exactly(expected, actual)
    return _compare_numbers(expected, actual, rtol, atol)


def _compare_values(expected: Any, actual: Any) -> Difference:
    same = type(expected) is type(actual) and (expected == actual or (expected != expected and actual != actual))
    return Difference() if same else _apart(f"{actual!r:.60} instead of {expected!r:.60}")


def _compare_exactly(expected: torch.Tensor, actual: torch.Tensor) -> Difference:
    unequal = int((expected != actual).sum())
    if not unequal:
        return Difference()
    gaps = (expected.double() - actual.double()).abs()
    reason = f"{unequal} of {expected.numel()} elements differ, and {expected.dtype} must be equal"
    return Difference(reason, float(gaps.max()), float(gaps.mean()))


def _compare_numbers(
    expected: torch.Tensor, actual: torch.Tensor, rtol: float | None, atol: float | None
) -> Difference:
    dtype = expected.dtype
    wide = torch.complex128 if expected.is_complex() else torch.float64
    expected, actual = expected.to(wide), actual.to(wide)
    special = ~torch.isfinite(expected)
    if bool((special != ~torch.isfinite(actual)).any()) or not _same_special(expected[special], actual[special]):
        return _apart("NaN or infinity in different places")
    expected, actual = expected[~special], actual[~special]
    if expected.numel() == 0:
        return Difference()
    gaps, sizes = (expected - actual).abs(), expected.abs()
    default_rtol, default_atol = tolerances(dtype)
    scale = min(1.0, float(sizes.max()))
    rtol, atol = default_rtol if rtol is None else rtol, default_atol * scale if atol is None else atol
    allowed = rtol * sizes + atol
    outside = int((gaps > allowed).sum())
    worst, mean = float(gaps.max()), float(gaps.mean())
    verb = "are too far off" if rtol or atol else "differ"
    reason = f"{outside} of {gaps.numel()} elements {verb}" if outside else ""
    return Difference(reason, worst, mean)


def _same_special(expected: torch.Tensor, actual: torch.Tensor) -> bool:
    if expected.is_complex():
        return _same_special(expected.real, actual.real) and _same_special(expected.imag, actual.imag)
    return bool(((expected == actual) | (expected.isnan() & actual.isnan()) | expected.isfinite()).all())


def _apart(reason: str) -> Difference:
    return Difference(reason, float("inf"), float("inf"))
