"""Neutral settings under which graphs are defined and run: no gradients, no autocast, float32.

Operators read some settings from the process: `aten.zeros` without a dtype uses torch's default dtype, as does the
quotient of two integers, and autocast changes the dtypes of matrix products. A graph does not record these settings, so
everything that runs a graph or infers its shapes uses the same ones.
"""

from __future__ import annotations

import threading
from contextlib import ExitStack
from types import TracebackType

import torch

from torch_ir.ir import IR, OpNode
from torch_ir.ir.graph.attr_types import DTYPES

DEFAULT_DTYPE = torch.float32
AUTOCAST_DEVICES = ("cpu", "cuda", "mps", "xpu")
_FLOATS = frozenset(name for name in DTYPES if name.startswith(("float", "bfloat", "complex")))


class NeutralState:
    """A context without gradients, inference mode or autocast; torch's default dtype is float32 if it is read."""

    def __init__(self, reads_default_dtype: bool = True) -> None:
        self._reads_default_dtype = reads_default_dtype
        self._no_grad = torch.no_grad()
        self._others: ExitStack | None = None  # other contexts, which are rarely needed

    def __enter__(self) -> None:
        has_dtype = self._reads_default_dtype and (
            _default_dtype.users or torch.get_default_dtype() is not DEFAULT_DTYPE
        )
        devices = [device for device in AUTOCAST_DEVICES if torch.is_autocast_enabled(device)]
        if has_dtype or devices or torch.is_inference_mode_enabled():
            with ExitStack() as others:
                others.enter_context(torch.inference_mode(False))
                for device in devices:
                    others.enter_context(torch.autocast(device, enabled=False))
                if has_dtype:
                    others.enter_context(_default_dtype)
                self._others = others.pop_all()
        self._no_grad.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._no_grad.__exit__(kind, error, trace)
        if self._others is not None:
            self._others.__exit__(kind, error, trace)


class _DefaultDtype:
    """Float32 as torch's default dtype, which all threads share: the last user restores it."""

    def __init__(self) -> None:
        self.users = 0
        self._lock = threading.Lock()
        self._outside = DEFAULT_DTYPE

    def __enter__(self) -> None:
        with self._lock:
            if not self.users:
                self._outside = torch.get_default_dtype()
            self.users += 1
            torch.set_default_dtype(DEFAULT_DTYPE)

    def __exit__(self, *error: object) -> None:
        with self._lock:
            self.users -= 1
            if not self.users:
                torch.set_default_dtype(self._outside)


_default_dtype = _DefaultDtype()


def makes_default_dtype(node: OpNode) -> bool:
    """Whether torch's default dtype may affect a node: it makes floats from integers or from no tensors."""
    for tensor in node.inputs:  # most nodes read one, and this is asked of every node of a capture
        if tensor.dtype in _FLOATS:
            return False
    return node.attrs.get("dtype") is None and any(output.dtype in _FLOATS for output in node.outputs)


def reads_default_dtype(ir: IR) -> bool:
    """Whether torch's default dtype may affect a graph."""
    return any(map(makes_default_dtype, ir.all_nodes()))
