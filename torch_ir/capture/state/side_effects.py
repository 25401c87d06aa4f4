"""Undo side effects of running forward during a capture, and remove calls that failed from its graph."""

from __future__ import annotations

import builtins
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from contextvars import ContextVar
from functools import partial
from typing import Any

import torch
from torch import fx, nn

from torch_ir.capture.instrument import all_intercepted, intercepted
from torch_ir.capture.state.python_state import Change, Changed, PythonState
from torch_ir.ops.torch_internals import DisableTorchFunction, OpOverload, schema_of, version_of


class Observed:
    """The names of state that captures changed; `is_blind` if there may be changes that were not observed.

    `frozen` is the state on which a second run depends; None if the capture made no second run.
    """

    def __init__(self) -> None:
        self.names: dict[str, None] = {}
        self.is_blind = False
        self.frozen: Frozen | None = None

    @property
    def is_suspect(self) -> bool:
        return self.is_blind or bool(self.names)


Frozen = tuple[Sequence[Change], Sequence[str]]  # changes, and names where the state cannot be copied
Again = Callable[[PythonState, Iterable[str]], Frozen]
_observed: ContextVar[Observed | None] = ContextVar("observed", default=None)


@contextmanager
def left_as_it_was(
    model: nn.Module, *, when_forward_ends: bool = False, is_blind: bool = False, again: Again | None = None
) -> Iterator[PythonState]:
    """Restore the Python state that the model can reach afterwards; notify an observer of what was changed.

    With `when_forward_ends`, also notify it then, since torch.export restores some of the state itself. A blind capture
    does not execute forward in Python, or not on the model's own modules. Where the state may have changed, `again`
    runs the model once more.
    """
    state: PythonState  # with the hook below, which is not a change
    read: list[str] = []

    def note(changed: Changed) -> None:
        observed = _observed.get()
        if observed is not None:
            observed.names.update(dict.fromkeys(change.name for change in state.changes(changed)))
            observed.is_blind |= is_blind or bool(state.opaque or read)

    def note_end(*_: Any) -> None:
        with DisableTorchFunction():  # the modes of a tracer, which would see every attribute of every weight
            note(state.changed())

    hooks = [model.register_forward_hook(note_end)] if when_forward_ends else []
    state = PythonState(model)

    def call(name: str, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        read.append(name)
        return original(*args, **kwargs)

    has_ended = False
    try:
        # named in much code that forward may reach, and rarely called
        with all_intercepted({(builtins, name): partial(call, name) for name in state.reading}):
            yield state
        has_ended = True
    finally:
        changed = state.changed()
        note(changed)
        observed = _observed.get()
        if has_ended and again is not None and observed is not None and observed.is_suspect:
            with suppress(Exception):  # a model that cannot run twice on tensors without values
                observed.frozen = again(state, observed.names)
            changed = state.changed()
        state.restore(changed)
        for hook in hooks:
            hook.remove()


@contextmanager
def while_running(model: nn.Module, context: Callable[[], AbstractContextManager[Any]]) -> Iterator[None]:
    """Enter a context while this thread calls a model, and not for what a tracer does before and afterwards.

    Only the class of the model is patched: a patch of `nn.Module` would be in the stack trace of every node, once for
    each module around it. A `__call__` that the class inherits is looked up in each call, as tracers patch it, too.
    """
    kind, is_running = type(model), False
    has_own = "__call__" in vars(kind)

    def call(original: Callable[..., Any], module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        nonlocal is_running
        inherited: Any = super(kind, module)
        run = partial(original, module) if has_own else inherited.__call__
        if module is not model or is_running:  # another module of this class, or forward calls itself
            return run(*args, **kwargs)
        is_running = True
        try:
            with context():
                return run(*args, **kwargs)
        finally:
            is_running = False

    with intercepted(kind, "__call__", call):
        yield


def note_change(name: str) -> None:
    """Notify an observer that a capture changed state of this name."""
    if (observed := _observed.get()) is not None:
        observed.names[name] = None


@contextmanager
def observed_changes() -> Iterator[Observed]:
    """Yield a record of the state that captures change inside this context."""
    observed = Observed()
    token = _observed.set(observed)
    try:
        yield observed
    finally:
        _observed.reset(token)


@contextmanager
def constants_kept(state: PythonState) -> Iterator[None]:
    """Restore the values of real tensors other than weights: torch.export writes to them before it refuses to."""
    tensors = [tensor for _, tensor in state.tensors if not tensor.is_meta and _is_plain(tensor)]
    before = [(tensor, version_of(tensor), tensor.detach().clone()) for tensor in tensors]
    try:
        yield
    finally:
        for tensor, version, values in before:
            if version_of(tensor) != version:
                with torch.no_grad():
                    tensor.copy_(values)


def _is_plain(tensor: torch.Tensor) -> bool:
    return type(tensor) in (torch.Tensor, nn.Parameter) and not tensor.is_inference()


def drop_failed_calls(module: fx.GraphModule) -> None:
    """Erase calls without the result that their schema declares: they raised, and forward caught the exception."""
    failed = [node for node in module.graph.nodes if _has_failed(node)]
    for node in failed:
        module.graph.erase_node(node)
    if failed:
        module.recompile()


def _has_failed(node: fx.Node) -> bool:
    gives_something = isinstance(node.target, OpOverload) and bool(schema_of(node.target).returns)
    return gives_something and node.meta.get("val") is None and not node.users
