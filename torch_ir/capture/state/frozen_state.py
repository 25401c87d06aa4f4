"""Warn if forward changes Python state on which its next call depends: the graph keeps the state of the first call.

A capture that changed no state needs no check. Otherwise the model runs twice more on tensors without values: state is
frozen if the second run computes something else than the first, or changes Python values again. A cache that every call
fills with the same value is not reported.
"""

from __future__ import annotations

import logging
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from types import FrameType
from typing import Any

import torch
from torch import nn

from torch_ir.capture.data_branches.value_numbers import ValueNumbers
from torch_ir.capture.export.dynamic import Call
from torch_ir.capture.export.fake_weights import fake_copy, weight_free
from torch_ir.capture.instrument import capturing
from torch_ir.capture.program.provenance import is_users, source_line
from torch_ir.capture.quiet import quiet
from torch_ir.capture.state.python_state import Change, PythonState, written
from torch_ir.capture.state.side_effects import Frozen, Observed, observed_changes
from torch_ir.capture.state.tensor_leaks import contained
from torch_ir.capture.walk import weights
from torch_ir.errors import CaptureWarning, listed
from torch_ir.ir import IR
from torch_ir.ir.graph.garbage_collection import uncollected
from torch_ir.ops.fast_paths import uncompiled
from torch_ir.ops.torch_internals import pytree

_log = logging.getLogger("torch_ir.capture")
_MOST_NAMES = 4
_UNKNOWN = "an object that was not found"  # where only the results of a second run differ


def with_state_checked(model: nn.Module, call: Call, capture: Callable[[], IR]) -> IR:
    """Capture a graph, and warn if it freezes state."""
    with observed_changes() as observed:
        ir = capture()
    if not observed.is_suspect:
        return ir
    _log.info("%s runs again: its Python state may change", type(model).__name__, extra={"runs_again": True})
    if frozen := _frozen(model, call, observed):
        names = [f"{name!r} at {place}" if place else repr(name) for name, place in frozen.items()]
        text = f"forward changes state that the graph does not keep: {listed(names, _MOST_NAMES)}"
        warnings.warn(f"{text}; every run of the graph is a first call; use a buffer for it", CaptureWarning, 4)
    return ir


def _frozen(model: nn.Module, call: Call, observed: Observed) -> dict[str, str]:
    """Return the names of state that the next call would find changed, with the lines that change it."""
    changes, names = observed.frozen or ((), observed.names)
    if observed.frozen is not None and not any(observed.frozen):
        return {}
    lines: dict[str, str] = {}
    with capturing(), contained(model) as tensors, tensors.of_every_mode(), ExitStack() as stack:
        stack.enter_context(suppress(Exception))  # of a model that cannot run without values
        run = stack.enter_context(_fake_runs(model, call))
        state = PythonState(model)
        if observed.frozen is None:
            try:
                changes, names = frozen_by(model, run, run(), state, observed.names)
            finally:
                state.restore()
        lines = _lines(run, state, changes)
    return dict.fromkeys((*(change.name for change in changes), *names), "") | lines


def frozen_by(model: nn.Module, run: Callable[[], Any], first: Any, state: PythonState, names: Iterable[str]) -> Frozen:
    """Return the changes of state on which a second run depends, or, where none were seen, names of state.

    `state` is from before the first run, which had the result `first`; `names` are of state that a capture changed.
    """
    seen = state.changes()
    after = PythonState(model)
    if run() != first:
        return seen, [] if seen else [*map(written, state.opaque), *state.reading] or [*names] or [_UNKNOWN]
    return [*_from_the_start([change for change in after.changes() if not _is_tensor(change)], seen)], []


def _from_the_start(again: Sequence[Change], first: Sequence[Change]) -> Iterator[Change]:
    """Yield the changes of the second run, with the values before the first."""
    known = {change.name: change for change in first}
    return (known.get(change.name, change) for change in again)


def _is_tensor(change: Change) -> bool:
    """Whether a tensor was replaced by another."""
    return isinstance(change.old, torch.Tensor) and isinstance(change.now(), torch.Tensor)


@contextmanager
def _fake_runs(model: nn.Module, call: Call) -> Iterator[Callable[[], Any]]:
    """Yield a function that runs the model on fake tensors, with fresh weights each time, and returns a digest."""
    numbers = ValueNumbers()
    with weight_free(model) as (mode, _), ExitStack() as stack:
        if torch.get_default_device().type == "meta":
            stack.enter_context(torch.device("cpu"))
        # torch.compile would cache code for fake tensors
        for context in (quiet(), torch.no_grad(), uncompiled(), mode):
            stack.enter_context(context)
        slots = list(weights(model))

        def run() -> Any:
            numbers.begin()
            for weight in slots:
                if _is_alike(weight.table.get(weight.name), weight.tensor):
                    weight.table[weight.name] = weight.tensor
                    numbers.give(weight.tensor, weight.key, is_input=False)
            args, kwargs = pytree.tree_map_only(torch.Tensor, lambda tensor: fake_copy(tensor, mode), call)
            inputs = [leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
            for place, tensor in enumerate(inputs):
                numbers.give(tensor, place, is_input=True)
            with numbers:
                result = model(*args, **kwargs)
            return numbers.digest((result, inputs, [weight.table.get(weight.name) for weight in slots]))

        yield run


def _is_alike(one: Any, other: torch.Tensor) -> bool:
    """Whether the graph would write one tensor to the other: they have the same shape and dtype."""
    return isinstance(one, torch.Tensor) and (one.shape, one.dtype) == (other.shape, other.dtype)


def _lines(run: Callable[[], Any], state: PythonState, changes: Sequence[Change]) -> dict[str, str]:
    """Return the user's line that makes each change, from a traced run that starts with the original state."""
    waiting = {change.name: change for change in changes}
    found: dict[str, str] = {}
    last = [""]

    def look(frame: FrameType, event: str, _: Any) -> Any:
        if not is_users(frame.f_code.co_filename):
            return None
        for name in [name for name, change in waiting.items() if change.is_still_there()]:
            found[name] = last[0]
            del waiting[name]
        last[0] = source_line(frame.f_code.co_filename, frame.f_lineno)
        return look

    outer = sys.gettrace()
    sys.settrace(look)
    try:
        with uncollected():  # callbacks of the garbage collector are not the model's code
            run()
    finally:
        sys.settrace(outer)
        state.restore()
    return found
