"""Try the fast recording first; on request, compare its graph with that of torch.export."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable
from functools import partial
from itertools import zip_longest
from typing import Any

from torch import nn

from torch_ir.capture.data_branches.decision_paths import Path
from torch_ir.capture.data_branches.explore_ways import explored
from torch_ir.capture.diagnosis import untraceable
from torch_ir.capture.export.dynamic import Call
from torch_ir.capture.export.untraceable import refuse_scripted
from torch_ir.capture.fast.data_queries import UntraceableError
from torch_ir.capture.fast.fast_recording import record_fast
from torch_ir.capture.fast.shape_tensors import ForwardRaisedError
from torch_ir.capture.state.shared_memory import refuse_shared_memory
from torch_ir.errors import CaptureWarning, ExportError, TorchIRError
from torch_ir.ir import IR

_log = logging.getLogger("torch_ir.capture")


def quickly(
    model: nn.Module,
    call: Call,
    otherwise: Callable[[], IR],
    check: Callable[[], IR] | None = None,
    ways: int = 1,
    otherwise_by: str = "",
    **options: Any,
) -> IR:
    """Return the fast recording if it covers the model, else `otherwise()`; with a check, only if both graphs agree.

    `ways` is the largest number of paths through the model's branches on data, `options` are those of `record_fast`.
    `otherwise_by` is the name of torch.export in the graph, if that is the other way.
    """
    try:
        refuse_scripted(model)
        quick = explored(partial(_recorded, model, call, options), ways)
        refuse_shared_memory(model, quick)
    except TorchIRError as reason:
        if isinstance(reason, UntraceableError) and otherwise_by:
            raise untraceable(model, reason.place, reason.cause) from None
        text = str(reason)
        _log.info("%s is not recorded fast: %s", type(model).__name__, text, extra={"fallback": text})
        ir = otherwise()
        if otherwise_by:
            ir.extensions["captured_by"] = otherwise_by
        return ir
    return quick if check is None else _checked(quick, check)


def _recorded(model: nn.Module, call: Call, options: dict[str, Any], path: Path) -> IR:
    try:
        return record_fast(model, *call, path=path, **options)
    except ForwardRaisedError as error:
        if path.is_hypothetical:  # the example inputs need not take this path
            raise ExportError(str(error), cause=error.cause) from error
        raise


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
