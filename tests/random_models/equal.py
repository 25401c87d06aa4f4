"""Whether two results are the same: equal structure and equal bits."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from typing import Any

import torch
from torch import Tensor

_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def apart(wanted: Any, got: Any, place: str = "result") -> str:
    """Where two nested results differ first, and how; empty if they do not."""
    if isinstance(wanted, Tensor):
        return _tensors_apart(wanted, got, place)
    if is_dataclass(wanted) and isinstance(got, dict):  # an object is returned as a record with its fields
        return apart({field.name: getattr(wanted, field.name) for field in fields(wanted)}, dict(got), place)
    if isinstance(wanted, dict):
        if not isinstance(got, dict) or list(wanted) != list(got):
            return f"{place}: {_kind(got)} instead of {_kind(wanted)}"
        return _first(apart(wanted[key], got[key], f"{place}[{key!r}]") for key in wanted)
    if isinstance(wanted, (tuple, list)):
        if _kind(wanted) != _kind(got):
            return f"{place}: {_kind(got)} instead of {_kind(wanted)}"
        return _first(
            apart(one, other, f"{place}[{i}]") for i, (one, other) in enumerate(zip(wanted, got, strict=True))
        )
    same = type(wanted) is type(got) and wanted == got
    return "" if same else f"{place}: {got!r} instead of {wanted!r}"


def _first(found: Any) -> str:
    return next((text for text in found if text), "")


def _kind(value: Any) -> str:
    if isinstance(value, dict):
        return f"dict of {list(value)}"
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return f"named tuple of {value._fields}"
    return f"{type(value).__name__} of {len(value)}" if isinstance(value, (tuple, list)) else type(value).__name__


def _tensors_apart(wanted: Tensor, got: Any, place: str) -> str:
    if not isinstance(got, Tensor):
        return f"{place}: {type(got).__name__} instead of a tensor"
    if (wanted.shape, wanted.dtype) != (got.shape, got.dtype):
        return f"{place}: {got.dtype}{list(got.shape)} instead of {wanted.dtype}{list(wanted.shape)}"
    if wanted.is_complex():
        one, other = torch.view_as_real(wanted.resolve_conj()), torch.view_as_real(got.resolve_conj())
        return _tensors_apart(one, other, place)
    off = _bits(wanted) != _bits(got)
    if wanted.is_floating_point():
        off &= ~(wanted.isnan() & got.isnan())  # every NaN is like every other
    if not bool(off.any()):
        return ""
    gap = float((wanted.double() - got.double())[off].abs().max())
    return f"{place}: {int(off.sum())} of {off.numel()} elements differ, by up to {gap:.3g}"


def _bits(x: Tensor) -> Tensor:
    return x if x.dtype == torch.bool else x.contiguous().view(_BITS[x.element_size()])
