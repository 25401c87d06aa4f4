"""Adversarial values of a dtype, for the runs after the first."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

_INF = float("inf")
FLOATS = {
    "ties": (0.0, -0.0, 1.0, 1.0, 0.5, -0.5, 2.5, -1.5, -1.0, 3.0),
    "nan": (0.5, float("nan"), -2.0, 1.0, float("nan"), 0.25, 3.0),
    "infinity": (1.0, _INF, -0.5, -_INF, 2.0, 0.25, -3.0),
}
DENORMAL = {"float64": 5e-320, "float32": 1e-41, "bfloat16": 1e-40, "float16": 3e-7}


def value_sets(tensors: Sequence[Tensor], dtype: str, special: bool) -> Iterator[tuple[str, list[Tensor]]]:
    """The values as they were drawn, then the same tensors of this dtype filled with others."""
    yield "sample", [tensor.clone() for tensor in tensors]
    kind = getattr(torch, dtype)
    if special and any(tensor.dtype == kind for tensor in tensors):
        for name, row in rows_of(kind).items():
            yield (
                name,
                [
                    _filled(tensor, row, at) if tensor.dtype == kind else tensor.clone()
                    for at, tensor in enumerate(tensors)
                ],
            )


def rows_of(kind: torch.dtype) -> dict[str, tuple[float, ...]]:
    """The sets of values that a dtype is tried with, by name."""
    if kind == torch.bool:
        return {"all false": (False,), "all true": (True,)}
    if kind.is_floating_point:
        found = torch.finfo(kind)
        tiny = DENORMAL[str(kind).removeprefix("torch.")]
        return {
            **FLOATS,
            "denormal": (tiny, 0.0, -tiny, 1.0),
            "large": (found.max, -1.0, found.max / 2, found.min, 3.0),
        }
    if kind.is_complex:
        return {}
    whole = torch.iinfo(kind)
    small = (1, 3, 2, 2, 5, 1) if whole.min == 0 else (-1, 3, -2, 2, -5, 1)
    large = (whole.max, whole.max - 1, whole.min + 1, 7, whole.max // 2 + 1, 1)
    return {"small": small, "extremes": large}


def _filled(tensor: Tensor, row: Sequence[float], shift: int) -> Tensor:
    """Return a tensor of the same shape and strides with a repeated row, shifted for each tensor."""
    if tensor.numel() == 0 or tensor.layout != torch.strided:
        return tensor.clone()
    numbers = [row[(at + shift) % len(row)] for at in range(len(row))]
    count = -(-tensor.numel() // len(numbers))
    flat = torch.tensor(numbers, dtype=tensor.dtype).repeat(count)[: tensor.numel()]
    return torch.empty_like(tensor).copy_(flat.reshape(tensor.shape))
