"""The lock of this process for tracing: torch.export, torch.onnx and captures keep their state in the process."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

_COMPILER = "torch._dynamo.convert_frame"
_lock = threading.RLock()


@contextmanager
def tracing() -> Iterator[None]:
    """Hold the lock, and that of torch.compile, which must not see a patched torch."""
    compiler: Any = sys.modules.get(_COMPILER)
    with getattr(compiler, "compile_lock", None) or nullcontext(), _lock:
        yield


def is_held() -> bool:
    """Whether this thread holds the lock."""
    return bool(_lock._is_owned())  # type: ignore[attr-defined]  # as threading.Condition calls it


def _renew() -> None:
    """In a forked child, replace the locks if a thread that does not exist there holds them."""
    global _lock
    if _lock.acquire(blocking=False):
        _lock.release()
        return
    _lock = threading.RLock()
    compiler: Any = sys.modules.get(_COMPILER)
    if compiler is not None:
        compiler.compile_lock = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew)
