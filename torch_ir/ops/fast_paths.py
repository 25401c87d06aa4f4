"""Disable the code that torch runs instead of a model's own operators, while a model is observed."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch

from torch_ir.ops.shared_by_threads import SharedSwitch
from torch_ir.ops.torch_internals import compile_stance, set_compile_stance


class _Here(threading.local):
    eager = 0  # number of `uncompiled` contexts in this thread


class _StanceByThread:
    """The stance of torch.compile: "force_eager" in threads that request it, else the previous one."""

    def __init__(self, previous: Any) -> None:
        self._previous = previous

    def __getattr__(self, name: str) -> Any:
        return getattr(self._previous, name)

    @property
    def stance(self) -> str:
        return "force_eager" if _here.eager else str(self._previous.stance)


_here = _Here()
_attention = SharedSwitch(
    torch.backends.mha.get_fastpath_enabled, torch.backends.mha.set_fastpath_enabled, lambda _: False
)
_stance = SharedSwitch(compile_stance, set_compile_stance, _StanceByThread)


def plain_attention() -> AbstractContextManager[None]:
    """Disable the fused kernels of torch's transformer layers, which capture cannot see; thread-safe.

    torch has one switch for the whole process: meanwhile, layers in other threads also run unfused.
    """
    return _attention


@contextmanager
def uncompiled() -> Iterator[None]:
    """Run compiled functions as plain Python in this thread, like `torch.compiler.set_stance("force_eager")`.

    torch has one stance for the whole process; other threads keep theirs.
    """
    compile_stance()  # the first call imports the compiler, which takes seconds: do it outside the lock
    with _stance:
        _here.eager += 1
        try:
            yield
        finally:
            _here.eager -= 1
