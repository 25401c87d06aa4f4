"""Switch off, while a model is watched, the code that torch runs instead of a model's own operators."""

from __future__ import annotations

import importlib
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

_lock = threading.Lock()
_eager_here = threading.local()
_inside = {"attention": 0, "stance": 0}
_before: dict[str, Any] = {}


@contextmanager
def plain_attention() -> Iterator[None]:
    """Disable the fused kernels of torch's transformer layers, which no capture sees; several threads may be inside.

    Torch has one switch for the whole process: meanwhile, layers in other threads run the same operators one by one.
    """
    with _lock:
        if not _inside["attention"]:
            _before["attention"] = torch.backends.mha.get_fastpath_enabled()
            torch.backends.mha.set_fastpath_enabled(False)
        _inside["attention"] += 1
    try:
        yield
    finally:
        with _lock:
            _inside["attention"] -= 1
            if not _inside["attention"]:
                torch.backends.mha.set_fastpath_enabled(_before.pop("attention"))


class _StanceByThread:
    """The stance of torch.compile: "force_eager" in threads that ask for it, else what it was before."""

    def __init__(self, otherwise: Any) -> None:
        self._otherwise = otherwise

    def __getattr__(self, name: str) -> Any:
        return getattr(self._otherwise, name)

    @property
    def stance(self) -> str:
        is_eager = getattr(_eager_here, "depth", 0)
        return "force_eager" if is_eager else str(self._otherwise.stance)


@contextmanager
def uncompiled() -> Iterator[None]:
    """Run compiled functions as plain Python in this thread, like `torch.compiler.set_stance("force_eager")`.

    Torch keeps one stance for the whole process; other threads go on with theirs.
    """
    frames: Any = importlib.import_module("torch._dynamo.eval_frame")
    _eager_here.depth = getattr(_eager_here, "depth", 0) + 1
    with _lock:
        if not _inside["stance"]:
            _before["stance"] = frames._stance
            _before["by thread"] = frames._stance = _StanceByThread(frames._stance)
        _inside["stance"] += 1
    try:
        yield
    finally:
        _eager_here.depth -= 1
        with _lock:
            _inside["stance"] -= 1
            before, ours = _before["stance"], _before["by thread"]
            if not _inside["stance"] and frames._stance is ours:  # else the user has set another meanwhile
                frames._stance = before
