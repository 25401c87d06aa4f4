"""The capture steps in order: those with the best graphs first, those that accept the most models last.

A step imports its modules when it runs: the first one, the fast recording, needs neither sympy nor fx graphs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import nn

from torch_ir.capture.crosscheck import quickly
from torch_ir.capture.export.dynamic import Call
from torch_ir.capture.export.untraceable import refuse_scripted
from torch_ir.capture.fast.fast_recording import record_fast
from torch_ir.capture.fast.shape_tensors import NotCoveredError
from torch_ir.capture.ladder import ANY_CAUSE, Step
from torch_ir.capture.state.frozen_state import with_state_checked
from torch_ir.capture.state.input_questions import guard_by_code, input_questions
from torch_ir.capture.state.shared_memory import refuse_shared_memory
from torch_ir.errors import Cause, ExportError
from torch_ir.ir import IR
from torch_ir.ops.torch_internals import pytree

FIXED, EXPORT = "recording with fixed inputs", "torch.export"
RECORDING, STRICTLY = "recording", "torch.export in strict mode"
_UNSEEN_IN_STRICT_MODE = frozenset(
    (Cause.BUFFER_CHANGES_FORM, Cause.MEMORY_REPLACED, Cause.INPUT_QUESTION, Cause.SEEDED)
)


class Request(NamedTuple):
    """A model, its inputs, and the options of the capture."""

    model: nn.Module
    call: Call
    dynamic_shapes: Any
    capture: str
    ways: int  # the largest number of paths through the model's branches on data
    crosscheck: bool
    in_blocks: bool
    is_fast: bool  # whether the fast recording is tried first
    fixed: tuple[torch.Tensor, ...] = ()  # inputs whose values are part of the capture
    with_gradients: bool = False  # whether the model is a training step, which is recorded


def steps(request: Request) -> Iterator[Step]:
    """Yield the steps to try, in order."""
    if request.fixed:
        yield _step(request, FIXED, with_fixed_inputs)
    elif request.capture != "record":
        yield _step(request, EXPORT, by_torch_export)
        if request.dynamic_shapes is None:  # strict mode does not show the model's decisions on sizes
            after = ANY_CAUSE - _UNSEEN_IN_STRICT_MODE
            yield _step(request, STRICTLY, by_strict_torch_export, is_risky=True, after=after)
    if request.capture != "export" and request.dynamic_shapes is None and not request.fixed:
        yield _step(request, RECORDING, by_recording)


def by_torch_export(request: Request) -> IR:
    """Capture by a fast recording, which gives the same graph, or by `torch.export`."""
    if request.is_fast:
        exactly = partial(_exactly, request)
        options = {"ways": request.ways, "dynamic_shapes": request.dynamic_shapes, "otherwise_by": EXPORT}
        return quickly(request.model, request.call, exactly, _check(request), **options)
    return _exactly(request)


def with_fixed_inputs(request: Request) -> IR:
    """Record a model some of whose inputs have values, which its Python may read."""
    refuse_scripted(request.model)
    try:
        return record_fast(request.model, *request.call, fixed=request.fixed)
    except NotCoveredError as reason:
        raise ExportError(f"cannot capture {type(request.model).__name__} with fixed inputs: {reason}") from reason


def by_strict_torch_export(request: Request) -> IR:
    """Run `torch.export` in strict mode, which interprets the bytecode of forward; it may crash the process."""
    from torch_ir.capture.export.torch_export import export_to_ir

    ir = export_to_ir(request.model, request.call, None, in_strict_mode=True)
    guard_by_code(request.model, ir, request.call)
    return ir


def by_recording(request: Request) -> IR:
    """Record one run of the model in ordinary Python, or one for each outcome of its branches on data."""
    recording = partial(_recorded, request)
    if not request.is_fast:
        return recording()
    options: dict[str, Any] = {"ways": request.ways, "with_gradients": request.with_gradients}
    if not request.with_gradients:
        options["may_specialise"] = True
        options["with_functions"] = request.capture == "record" and not (request.in_blocks or request.crosscheck)
    check = None if request.with_gradients else _check(request)
    return quickly(request.model, request.call, recording, check, **options)


def _recorded(request: Request) -> IR:
    from torch_ir.capture.data_branches.explore_ways import explored
    from torch_ir.capture.record.recorded_program import record

    recording = partial(record, request.model, request.call, with_gradients=request.with_gradients)
    return explored(recording, request.ways)


def _exactly(request: Request) -> IR:
    from torch_ir.capture.export.torch_export import export_to_ir

    return export_to_ir(request.model, request.call, request.dynamic_shapes)


def _check(request: Request) -> Callable[[], IR] | None:
    """Return the capture to compare a fast recording with, if requested."""
    return partial(_exactly, request) if request.crosscheck else None


def _step(
    request: Request,
    name: str,
    capture: Callable[[Request], IR],
    *,
    is_risky: bool = False,
    after: frozenset[Cause] = ANY_CAUSE,
) -> Step:
    """Return a step that checks its graph for frozen state and shared memory."""
    model, call = request.model, request.call
    checked = partial(with_state_checked, model, call, partial(_unshared, request, capture))
    return Step(type(model).__name__, name, checked, is_risky, after)


def _unshared(request: Request, capture: Callable[[Request], IR]) -> IR:
    """Capture a model; refuse a graph that separates memory which it shares, and guard its questions about inputs."""
    with input_questions() as questions:
        ir = capture(request)
    refuse_shared_memory(request.model, ir)
    questions.guard(ir, request.call)
    for graph in ir.all_graphs():
        graph.device = _device(request.call)
    return ir


def _device(call: Call) -> str:
    """Return the device of the capture: that of the inputs if they share one, else the CPU."""
    found = {str(leaf.device) for leaf in pytree.tree_leaves(call) if isinstance(leaf, torch.Tensor)}
    return found.pop() if len(found) == 1 and "meta" not in found else "cpu"
