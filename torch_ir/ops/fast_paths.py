"""State of the process while a model is traced: one lock, and switches for fast paths.

Fast paths are code that torch runs instead of a model's own operators; they are disabled while a model is observed.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch

from torch_ir.ops.torch_internals import compile_stance, set_compile_stance

_COMPILER = "torch._dynamo.convert_frame"
_tracing = threading.RLock()


@contextmanager
def tracing() -> Iterator[None]:
    """Hold the lock, and that of torch.compile, which must not see a patched torch."""
    compiler: Any = sys.modules.get(_COMPILER)
    with getattr(compiler, "compile_lock", None) or nullcontext(), _tracing:
        yield


def is_held() -> bool:
    """Whether this thread holds the lock."""
    return bool(_tracing._is_owned())  # type: ignore[attr-defined]  # as threading.Condition calls it


def _renew() -> None:
    """In a forked child, replace these locks if a thread that does not exist there holds them."""
    global _tracing
    if _tracing.acquire(blocking=False):
        _tracing.release()
        return
    _tracing = threading.RLock()
    compiler: Any = sys.modules.get(_COMPILER)
    if compiler is not None:
        compiler.compile_lock = threading.RLock()


# -- fast paths -------------------------------------------------------------------------------------------------------


class _Here(threading.local):
    depth = 0  # number of switches that this thread has set
    eager = 0


_lock = threading.Lock()
_here = _Here()
_inside = {"attention": 0, "stance": 0}
_before: dict[str, Any] = {}


def _forget() -> None:
    """In a forked process, which has no other threads, undo their switches."""
    global _lock
    _lock = threading.Lock()
    if _here.depth:
        return
    if _inside["attention"]:
        torch.backends.mha.set_fastpath_enabled(_before.pop("attention"))
    if _inside["stance"]:
        _put_back_stance()
    _inside.update(attention=0, stance=0)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew)
    os.register_at_fork(after_in_child=_forget)


@contextmanager
def plain_attention() -> Iterator[None]:
    """Disable the fused kernels of torch's transformer layers, which capture cannot see; thread-safe.

    torch has one switch for the whole process: meanwhile, layers in other threads also run unfused.
    """
    _here.depth += 1
    with _lock:
        if not _inside["attention"]:
            _before["attention"] = torch.backends.mha.get_fastpath_enabled()
            torch.backends.mha.set_fastpath_enabled(False)
        _inside["attention"] += 1
    try:
        yield
    finally:
        _here.depth -= 1
        with _lock:
            _inside["attention"] -= 1
            if not _inside["attention"]:
                torch.backends.mha.set_fastpath_enabled(_before.pop("attention"))


class _StanceByThread:
    """The stance of torch.compile: "force_eager" in threads that request it, else the previous one."""

    def __init__(self, previous: Any) -> None:
        self._previous = previous

    def __getattr__(self, name: str) -> Any:
        return getattr(self._previous, name)

    @property
    def stance(self) -> str:
        return "force_eager" if _here.eager else str(self._previous.stance)


@contextmanager
def uncompiled() -> Iterator[None]:
    """Run compiled functions as plain Python in this thread, like `torch.compiler.set_stance("force_eager")`.

    torch has one stance for the whole process; other threads keep theirs.
    """
    compile_stance()  # the first call imports the compiler, which takes seconds: do it outside the lock
    _here.depth, _here.eager = _here.depth + 1, _here.eager + 1
    with _lock:
        if not _inside["stance"]:
            _before["stance"] = compile_stance()
            set_compile_stance(_StanceByThread(_before["stance"]))
        _inside["stance"] += 1
    try:
        yield
    finally:
        _here.depth, _here.eager = _here.depth - 1, _here.eager - 1
        with _lock:
            _inside["stance"] -= 1
            if not _inside["stance"]:
                _put_back_stance()


def _put_back_stance() -> None:
    before = _before.pop("stance")
    if isinstance(compile_stance(), _StanceByThread):  # otherwise the user has set another one meanwhile
        set_compile_stance(before)
