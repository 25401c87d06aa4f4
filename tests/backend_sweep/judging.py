"""Compare a back end's result with eager's: the same, the same up to rounding, or different."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from torch_ir.run.tolerances import compare

SAME, ROUNDING, WRONG, REFUSED, CRASHED = "same", "rounding", "wrong", "refused", "crashed"
_ROUNDINGS = 16  # units in the last place of the largest element, which a sum in another order may lose
_NEARER = 8  # times as far off as eager itself is


def judge(wanted: Sequence[Tensor], got: Sequence[Tensor], exact: Sequence[Tensor] | None) -> tuple[str, str]:
    """The worst verdict over the outputs of a case, and why; `exact` is eager in float64."""
    if len(wanted) != len(got):
        return WRONG, f"{len(got)} outputs instead of {len(wanted)}"
    verdict = SAME
    for index, (one, other) in enumerate(zip(wanted, got, strict=True)):
        if is_same(one, other):
            continue
        reason = compare(one, other).reason
        if reason and not is_rounding(one, other, exact[index] if exact else None):
            return WRONG, reason
        verdict = ROUNDING
    return verdict, ""


def is_same(wanted: Tensor, got: Tensor) -> bool:
    """Whether two tensors are equal in dtype, shape and every element; the sign of a zero does not count."""
    if wanted.dtype != got.dtype or wanted.shape != got.shape:
        return False
    return bool(((wanted == got) | ((wanted != wanted) & (got != got))).all())


def is_rounding(wanted: Tensor, got: Tensor, exact: Tensor | None) -> bool:
    """Whether two float tensors differ by no more than the error that eager itself has in this dtype."""
    if wanted.dtype != got.dtype or wanted.shape != got.shape:
        return False
    if wanted.is_complex():
        parts = None if exact is None or not exact.is_complex() else _parts(exact)
        return is_rounding(_parts(wanted), _parts(got), parts)
    if not wanted.is_floating_point():
        return False
    finite = wanted.isfinite()
    if not torch.equal(finite, got.isfinite()) or not is_same(wanted[~finite], got[~finite]):
        return False
    ours, theirs = wanted[finite].double(), got[finite].double()
    gap, scale = float((ours - theirs).abs().max()), float(ours.abs().max())
    allowed = _ROUNDINGS * torch.finfo(wanted.dtype).eps * scale
    if exact is not None and exact.shape == wanted.shape and bool(exact[finite].isfinite().all()):
        allowed = max(allowed, _NEARER * float((ours - exact[finite]).abs().max()))
    return gap <= allowed


def _parts(value: Tensor) -> Tensor:
    return torch.view_as_real(value.resolve_conj())


def in_float64(model: nn.Module | None, given: Sequence[Tensor]) -> list[Tensor] | None:
    """Return the model's results in float64, if it supports that."""
    from tests.backend_sweep.cases import eager

    if model is None or not any(tensor.is_floating_point() and tensor.dtype != torch.float64 for tensor in given):
        return None
    found = eager(model, [tensor.double() if tensor.is_floating_point() else tensor for tensor in given])
    return found and [value.double() if value.is_floating_point() else value for value in found]
