"""The lock of tracing, which threads share."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

from torch_ir.ops.torch_internals import COMPILER, LIST_COMPOSITES

_tracing = threading.RLock()


@contextmanager
def tracing() -> Iterator[None]:
    """Hold the lock of captures and exports, and that of torch.compile, which must not see a patched torch."""
    compiler: Any = sys.modules.get(COMPILER)
    with getattr(compiler, "compile_lock", None) or nullcontext(), _tracing:
        yield


@contextmanager
def decomposing() -> Iterator[None]:
    """Hold the lock of exports, and let torch list the composite operators of C++ once in this thread.

    It lists them for every namespace, twice in an ONNX export: a third of the time of a small one, or of
    functionalising a small graph. No operator is registered in between.
    """
    owner, name = LIST_COMPOSITES
    thread, is_listed = threading.get_ident(), False
    with tracing():
        list_composites = getattr(owner, name)

        def list_once() -> None:
            nonlocal is_listed
            is_here = threading.get_ident() == thread
            if not (is_here and is_listed):
                list_composites()
                is_listed = is_listed or is_here

        setattr(owner, name, list_once)
        try:
            yield
        finally:
            setattr(owner, name, list_composites)


def holds_tracing_lock() -> bool:
    """Whether this thread holds the lock of captures and exports."""
    return _is_owned(_tracing)


def _is_owned(lock: Any) -> bool:
    return bool(lock._is_owned())  # as threading.Condition calls it


def _release_locks() -> None:
    """In a forked child, replace the locks of threads that do not exist there."""
    global _tracing
    if not _is_owned(_tracing):
        _tracing = threading.RLock()
    compiler: Any = sys.modules.get(COMPILER)
    if hasattr(compiler, "compile_lock") and not _is_owned(compiler.compile_lock):
        compiler.compile_lock = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_release_locks)
