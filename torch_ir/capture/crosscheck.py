"""Try the fast recording first; on request, compare its graph with that of torch.export."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable
from itertools import zip_longest
from typing import Any

from torch import nn

from torch_ir.capture.export.dynamic import Call
from torch_ir.capture.export.untraceable import refuse_scripted
from torch_ir.capture.fast.fast_recording import record_fast
from torch_ir.capture.fast.shape_tensors import NotCoveredError
from torch_ir.errors import CaptureWarning, TorchIRError
from torch_ir.ir import IR

_log = logging.getLogger("torch_ir.capture")


def quickly(
    model: nn.Module, call: Call, otherwise: Callable[[], IR], check: Callable[[], IR] | None = None, **options: Any
) -> IR:
    """Return the fast recording if it covers the model, else `otherwise()`; with a check, only if both graphs agree.

    `options` are those of `record_fast`.
    """
    refuse_scripted(model)
    try:
        quick = record_fast(model, *call, **options)
    except NotCoveredError as reason:
        text = str(reason)
        _log.info("%s is not recorded fast: %s", type(model).__name__, text, extra={"fallback": text})
        return otherwise()
    return quick if check is None else _checked(quick, check)


def _checked(quick: IR, check: Callable[[], IR]) -> IR:
    try:
        exact = check()
    except TorchIRError as error:
        warnings.warn(f"the recording could not be checked: {error}", CaptureWarning, stacklevel=8)
        return quick
    if found := first_difference(exact, quick):
        difference = f"the recording differs from the graph of torch.export, which is used: {found}"
        warnings.warn(difference, CaptureWarning, stacklevel=8)
        return exact
    return quick


def first_difference(exact: IR, quick: IR) -> str:
    """Return the first lines in which the JSON of two graphs differs; empty if there is none."""
    if (text := exact.to_json()) == (other := quick.to_json()):
        return ""
    lines = zip_longest(text.splitlines(), other.splitlines(), fillvalue="nothing")
    one, another = next((one, another) for one, another in lines if one != another)
    return f"{one[:120]} / {another[:120]}"
