"""All process-wide changes that capture makes, except for suppressed output (`quiet`): patches of torch and its flags.

One capture runs at a time, under one re-entrant lock. A patched function calls the handler of its own thread, else the
original, so that other threads see an unpatched torch. Handlers are per thread and not per context (`contextvars`), as
torch's modes are: a context may be copied into a thread whose operators no recorder sees.

Some settings have no per-thread form and change for the whole process during a capture: the flags of mkldnn, nnpack and
cudnn (an eager call in another thread may use another kernel meanwhile, with the same result up to rounding), the fused
attention kernels (likewise), and torch.compile, whose compilations in other threads wait until the capture ends.
"""

from __future__ import annotations

import builtins
import math
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import cache, partial, reduce
from types import CodeType
from typing import Any, NamedTuple, TypeVar

import torch
from torch.fx import _symbolic_trace

from torch_ir.errors import ExportError
from torch_ir.ops.shared_by_threads import holds_tracing_lock, tracing
from torch_ir.ops.torch_internals import (
    CONTROL_FLOW,
    DeviceContext,
    ForceDispatchKeyGuard,
    disable_current_modes,
    excluded_dispatch_keys,
    function_modes,
    included_dispatch_keys,
    pop_function_mode,
    push_function_mode,
)

_Function = TypeVar("_Function", bound=Callable[..., Any])
_compiler: Any = torch._C._dynamo.eval_frame
Handler = Callable[..., Any]  # called with the original function and its arguments
_ABSENT = object()
_SYMBOLIC = (torch.SymInt, torch.SymFloat)


def hide_gpu() -> None:
    """Make torch see no GPU: TorchDynamo reads its random state, and a forked child cannot use its parent's CUDA."""
    torch.cuda.is_available = lambda: False
    torch.cuda.device_count = lambda: 0


class _Here(threading.local):
    """The capture state of this thread."""

    def __init__(self) -> None:
        self.depth = 0  # of nested captures
        self.handlers: dict[tuple[Any, str], Handler] = {}
        self.is_exporting = False  # the result of torch.compiler.is_compiling() and is_exporting()
        self.keys: tuple[Any, Any] = (None, None)  # torch's dispatch keys when the outermost capture began


class _State:
    """The capture state of the process."""

    has_flags = False  # whether a capture has set torch's flags for compiling and exporting


_here = _Here()
_state = _State()
_undo: list[Callable[[], None]] = []  # in the order in which the changes were made
_intercepted: set[tuple[Any, str]] = set()
_running: list[threading.Thread] = []  # threads that forward has started, while the outermost capture runs


# -- one capture at a time -------------------------------------------------------------------------------------------


@contextmanager
def exclusive() -> Iterator[None]:
    """Hold the lock of capture, and that of torch.compile, which must not see a patched torch."""
    if threading.current_thread() in _running:
        raise ExportError(
            "extract_ir is called in a thread that forward started while its model is being captured; "
            "call it in forward itself, or after the capture"
        )
    with tracing():
        yield


def not_compiled(function: _Function) -> _Function:
    """Exclude a function and its callees from torch.compile; `torch.compiler.disable` takes a second to import."""
    skip = _compiler._FrameAction.SKIP
    _compiler.set_code_exec_strategy(function.__code__, _compiler._FrameExecStrategy(skip, skip))
    function._torchdynamo_disable = True  # type: ignore[attr-defined]  # read by a compiled caller
    return function


def _forget() -> None:
    """In a forked child, undo the changes of captures in threads that do not exist there."""
    if not holds_tracing_lock():  # by the thread that is left
        _take_back(0)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)


@contextmanager
def capturing() -> Iterator[None]:
    """One capture: restore torch at the end, even after an error.

    A nested capture, in the forward of a model that is being captured, runs outside the modes and patches of the outer.
    """
    with exclusive(), ExitStack() as stack:
        if _here.depth:
            stack.enter_context(outside_modes())
        else:
            _here.keys = included_dispatch_keys(), excluded_dispatch_keys()
        stack.callback(_take_back, len(_undo))
        stack.callback(_here.__dict__.update, vars(_here).copy())
        _here.depth += 1
        _here.handlers, _here.is_exporting = {}, False
        stack.enter_context(intercepted(threading.Thread, "start", _note_thread))
        if hasattr(*CONTROL_FLOW):
            stack.enter_context(intercepted(*CONTROL_FLOW, _run_control_flow))
        yield


def _take_back(mark: int) -> None:
    """Undo the changes after a mark, the latest first."""
    while len(_undo) > mark:
        _undo.pop()()
    if not mark:
        _running.clear()


def _note_thread(original: Callable[..., Any], thread: threading.Thread) -> Any:
    _running.append(thread)
    return original(thread)


def _run_control_flow(original: Callable[..., Any], operator: Callable[..., Any], args: Any, kwargs: Any = None) -> Any:
    """Call an operator such as `cond` under a recorder without torch.compile.

    It would skip the frame because of the recorder's mode, and ever after: eager calls of the operator would then fail.
    """
    from torch_ir.ops.torch_internals import has_recording_mode

    return operator(*args, **(kwargs or {})) if has_recording_mode() else original(operator, args, kwargs)


@contextmanager
def outside_modes() -> Iterator[None]:
    """Leave torch's modes and dispatch keys of the outer capture, except for the default device."""
    modes: list[Any] = function_modes()  # type: ignore[no-untyped-call]  # torch's own
    with ExitStack() as stack:
        for mode in reversed(modes):
            pop_function_mode()
            stack.callback(push_function_mode, mode)
        kept = [mode for mode in modes if isinstance(mode, DeviceContext)]
        for mode in kept:
            push_function_mode(mode)
            stack.callback(pop_function_mode)
        stack.enter_context(disable_current_modes())
        stack.enter_context(ForceDispatchKeyGuard(*_here.keys))
        yield


# -- patches ---------------------------------------------------------------------------------------------------------


@contextmanager
def intercepted(owner: Any, name: str, handler: Handler) -> Iterator[None]:
    """Route this thread's calls of `owner.name` to a handler; its first argument is the original."""
    with all_intercepted({(owner, name): handler}):
        yield


@contextmanager
def all_intercepted(handlers: Mapping[tuple[Any, str], Handler]) -> Iterator[None]:
    """Do the same for several functions, by owner and name."""
    with exclusive():
        mark, outer = len(_undo), {key: _here.handlers.get(key) for key in handlers}
        try:
            for key in handlers:
                if key not in _intercepted:
                    _intercept(key)
            _here.handlers.update(handlers)
            yield
        finally:
            for key, handler in outer.items():
                if handler is None:
                    _here.handlers.pop(key, None)
                else:
                    _here.handlers[key] = handler
            _take_back(mark)


def _intercept(key: tuple[Any, str]) -> None:
    owner, name = key
    function = _function(_Patch(getattr(owner, name), lambda: _here.handlers.get(key)))
    _set(owner, name, function)
    _undo.append(lambda: _intercepted.discard(key))
    _intercepted.add(key)


class _Patch(NamedTuple):
    """A replacement for a function, which calls the handler of a thread, if there is one."""

    original: Callable[..., Any]
    handler: Callable[[], Handler | None]


@contextmanager
def _patched(owner: Any, name: str, patch: _Patch) -> Iterator[None]:
    """Replace an attribute by a patch."""
    with undone():
        _set(owner, name, _function(patch))
        yield


def _function(patch: _Patch) -> Callable[..., Any]:
    """Return a patch as a function; a reference that torch.compile keeps calls the original after the capture."""

    def call(*args: Any, **kwargs: Any) -> Any:
        handler = patch.handler()
        return patch.original(*args, **kwargs) if handler is None else handler(patch.original, *args, **kwargs)

    def call_original(*args: Any, **kwargs: Any) -> Any:
        return patch.original(*args, **kwargs)

    _set_code(call, _of_torch(call.__code__), call_original.__code__)
    return call


@cache
def _of_torch(code: CodeType) -> CodeType:
    """Return the code with a file name of torch, which torch skips when it looks for the user's frame."""
    return code.replace(co_filename=torch.__file__)


@contextmanager
def set_attribute(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Set an attribute; restore its former value, or its absence, at the end."""
    with undone():
        _set(owner, name, value)
        yield


def _set(owner: Any, name: str, value: Any) -> None:
    before = vars(owner).get(name, _ABSENT)

    def undo() -> None:
        if vars(owner).get(name) is not value:
            return  # another thread has patched it meanwhile, and will restore it
        if before is _ABSENT:
            delattr(owner, name)
        else:
            setattr(owner, name, before)

    _undo.append(undo)
    setattr(owner, name, value)


def _set_code(function: Any, code: CodeType, afterwards: CodeType) -> None:
    """Replace the code of a function; torch.compile identifies it by the function object."""
    _undo.append(lambda: setattr(function, "__code__", afterwards))
    function.__code__ = code


@contextmanager
def undone(*undo: Callable[[], None]) -> Iterator[None]:
    """Undo these changes at the end, and all that were made inside the context."""
    mark = len(_undo)
    _undo.extend(undo)
    try:
        yield
    finally:
        _take_back(mark)


def _here_only(new: Callable[..., Any]) -> Callable[[], Handler | None]:
    """Turn a patch that torch makes into a handler for this thread."""
    owner = threading.get_ident()

    def handle(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        return new(*args, **kwargs)

    return lambda: handle if threading.get_ident() == owner else None


# -- what torch.export does to the process ---------------------------------------------------------------------------


@contextmanager
def exporting() -> Iterator[None]:
    """Answer `torch.compiler.is_compiling()` and `is_exporting()` with True in this thread, and as before elsewhere."""
    with exclusive(), undone(), _as_exporting():
        for function, asked in _QUESTIONS.items():
            _set_code(function, asked.__code__, function.__code__)
        yield


@contextmanager
def _as_exporting() -> Iterator[None]:
    outer, _here.is_exporting = _here.is_exporting, True
    try:
        yield
    finally:
        _here.is_exporting = outer


@contextmanager
def export_in_this_thread() -> Iterator[None]:
    """Restrict process-wide changes of torch.export to this thread."""
    from torch.export import _trace

    with exporting(), ExitStack() as stack:
        # torch.compile, which control flow needs, reads these
        for name in ("_is_compiling_flag", "_is_exporting_flag"):
            stack.enter_context(set_attribute(torch.compiler, name, True))
        stack.enter_context(set_attribute(_state, "has_flags", True))
        stack.enter_context(set_attribute(_trace, "_compiling_state_context", _as_exporting))
        stack.enter_context(intercepted(_trace, "_override_builtin_ops", _override_here))
        stack.enter_context(intercepted(_symbolic_trace.Tracer, "trace", _trace_here))
        for name in ("_EXPORT_FLAGS", "_EXPORT_MODULE_HIERARCHY"):  # of the outer export, if nested
            stack.callback(setattr, _trace, name, getattr(_trace, name))
        yield


def _trace_here(original: Callable[..., Any], tracer: Any, *args: Any, **kwargs: Any) -> Any:
    """Restrict torch.fx's patches of `nn.Module` to this thread."""

    def patch(patch: Any, patcher: Any, owner: Any, name: str, new: Any, **options: Any) -> None:
        patch(patcher, owner, name, _function(_Patch(getattr(owner, name), _here_only(new))), **options)

    with undone(), intercepted(_symbolic_trace._Patcher, "patch_method", patch):
        return original(tracer, *args, **kwargs)


@contextmanager
def _override_here(original: Callable[[], AbstractContextManager[None]]) -> Iterator[None]:
    """Restrict torch.export's patches of `max`, `min` and `math.pow` to this thread."""
    names: list[tuple[Any, str]] = [(builtins, "max"), (builtins, "min"), (math, "pow")]
    before = [getattr(owner, name) for owner, name in names]
    with original(), ExitStack() as stack:
        for (owner, name), function in zip(names, before, strict=True):
            stack.enter_context(_patched(owner, name, _Patch(function, _here_only(getattr(owner, name)))))
        yield


def builtins_of_tensors() -> AbstractContextManager[None]:
    """Make `max`, `min` and `math.pow` operators of tensors and symbolic numbers, as torch.export does."""
    largest = partial(_extreme, torch.maximum, torch.sym_max, "min")
    least = partial(_extreme, torch.minimum, torch.sym_min, "max")
    return all_intercepted({(builtins, "max"): largest, (builtins, "min"): least, (math, "pow"): _power})


def _extreme(
    of_tensors: Handler, of_numbers: Handler, bound: str, original: Handler, *args: Any, **options: Any
) -> Any:
    if options or not args:
        return original(*args, **options)
    items = list(args[0]) if len(args) == 1 else args

    def extreme(one: Any, other: Any) -> Any:
        tensors = [each for each in (one, other) if isinstance(each, torch.Tensor)]
        if len(tensors) == 2:
            return of_tensors(one, other)
        if tensors:
            return torch.clamp(tensors[0], **{bound: other if one is tensors[0] else one})
        is_symbolic = isinstance(one, _SYMBOLIC) or isinstance(other, _SYMBOLIC)
        return of_numbers(one, other) if is_symbolic else original(one, other)

    is_special = any(isinstance(item, (torch.Tensor, *_SYMBOLIC)) for item in items)
    return reduce(extreme, items) if is_special else original(items)


def _power(original: Handler, base: Any, exponent: Any) -> Any:
    is_symbolic = isinstance(base, (torch.Tensor, *_SYMBOLIC)) or isinstance(exponent, (torch.Tensor, *_SYMBOLIC))
    return base**exponent if is_symbolic else original(base, exponent)


def is_exporting_here(flag: bool) -> bool:
    """Whether this thread exports; torch's flag counts if capture has not set it."""
    return _here.is_exporting or (flag and not _state.has_flags)


def is_tracing_here(flag: bool) -> bool:
    """Whether this thread traces with torch.fx; torch's flag counts unless capture traces in another thread."""
    return flag and (_here.depth > 0 or not _state.has_flags)


# Their code runs with the globals of torch's functions, so they import what they call.


def _is_compiling() -> bool:
    from torch_ir.capture.instrument import is_exporting_here

    return is_exporting_here(_is_compiling_flag)  # type: ignore[name-defined]  # noqa: F821  # of torch.compiler


def _is_exporting() -> bool:
    from torch_ir.capture.instrument import is_exporting_here

    return is_exporting_here(_is_exporting_flag)  # type: ignore[name-defined]  # noqa: F821  # of torch.compiler


def _is_tracing() -> bool:
    from torch_ir.capture.instrument import is_tracing_here

    return is_tracing_here(_is_fx_tracing_flag)  # type: ignore[name-defined]  # noqa: F821  # of torch.fx


def _is_tracing_symbolically() -> bool:
    from torch_ir.capture.instrument import is_tracing_here

    return is_tracing_here(_is_fx_tracing_flag) and not torch.compiler.is_compiling()  # type: ignore[name-defined]  # noqa: F821


_QUESTIONS: dict[Any, Any] = {torch.compiler.is_compiling: _is_compiling, torch.compiler.is_exporting: _is_exporting}
if hasattr(_symbolic_trace, "_is_fx_tracing_flag"):  # up to 2.14 for the whole process, then for each thread
    _QUESTIONS[_symbolic_trace.is_fx_tracing] = _is_tracing
    _QUESTIONS[_symbolic_trace.is_fx_symbolic_tracing] = _is_tracing_symbolically


@contextmanager
def without_libraries() -> Iterator[None]:
    """Disable mkldnn, nnpack and cudnn, as torch.export does; importing its function takes a second."""
    libraries: tuple[Any, ...] = (torch.backends.mkldnn, torch.backends.nnpack, torch.backends.cudnn)
    with exclusive(), ExitStack() as stack:
        for library in libraries:
            stack.enter_context(undone(partial(library.set_flags, *library.set_flags(False))))
        yield
