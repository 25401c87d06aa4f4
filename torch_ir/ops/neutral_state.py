"""Neutral settings under which graphs are defined, changed and run: no gradients, no autocast, float32.

Operators read some settings from the process: `aten.zeros` without a dtype uses torch's default dtype, as does the
quotient of two integers, and autocast changes the dtypes of matrix products. A graph does not record these settings, so
everything that runs a graph or infers its shapes uses the same ones.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from types import TracebackType
from typing import Any, TypeVar, cast

import torch

from torch_ir.ir import IR, OpNode
from torch_ir.ir.graph.attr_types import DTYPES
from torch_ir.ir.graph.shared_switch import SharedSwitch
from torch_ir.ops.torch_internals import function_mode_count

_Function = TypeVar("_Function", bound=Callable[..., Any])
_Item = TypeVar("_Item")
DEFAULT_DTYPE = torch.float32
AUTOCAST_DEVICES = ("cpu", "cuda", "mps", "xpu")
_FLOATS = frozenset(name for name in DTYPES if name.startswith(("float", "bfloat", "complex")))


class NeutralState:
    """A context without gradients, inference mode or autocast; torch's default dtype is float32 if it is read.

    Inference mode is on if a tensor in `written` was made in it: elsewhere, torch does not write to such tensors. With
    `new_on_cpu`, new tensors are on the CPU, also inside `with torch.device("meta")`: for code that computes with
    tensors of its own. Operators of a graph have their devices as attributes.
    """

    def __init__(
        self, reads_default_dtype: bool = True, *, written: Iterable[Any] = (), new_on_cpu: bool = False
    ) -> None:
        self._reads_default_dtype = reads_default_dtype
        self._written = written
        self._new_on_cpu = new_on_cpu
        self._no_grad: torch.no_grad | None = None
        self._others: ExitStack | None = None  # other contexts, which are rarely needed

    def __enter__(self) -> None:
        has_dtype = self._reads_default_dtype and (
            _default_dtype.users or torch.get_default_dtype() is not DEFAULT_DTYPE
        )
        devices = [device for device in AUTOCAST_DEVICES if torch.is_autocast_enabled(device)]
        is_inference = any(isinstance(value, torch.Tensor) and value.is_inference() for value in self._written)
        # a default device is a function mode; asking for it takes longer than the rest of this function
        has_device = self._new_on_cpu and function_mode_count() > 0 and torch.get_default_device().type != "cpu"
        if has_dtype or devices or has_device or is_inference or torch.is_inference_mode_enabled():
            with ExitStack() as others:
                others.enter_context(torch.inference_mode(is_inference))
                for device in devices:
                    others.enter_context(torch.autocast(device, enabled=False))
                if has_dtype:
                    others.enter_context(_default_dtype)
                if has_device:
                    others.enter_context(torch.device("cpu"))
                self._others = others.pop_all()
        self._no_grad = torch.no_grad() if torch.is_grad_enabled() else None
        if self._no_grad is not None:
            self._no_grad.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._no_grad is not None:
            self._no_grad.__exit__(kind, error, trace)
        if self._others is not None:
            self._others.__exit__(kind, error, trace)


def neutral(function: _Function) -> _Function:
    """Run a function that computes with tensors of its own, but runs no model, in the neutral state."""

    @functools.wraps(function)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        with NeutralState(new_on_cpu=True):
            return function(*args, **kwargs)

    return cast(_Function, wrapped)


def neutral_steps(steps: Iterator[_Item]) -> Iterator[_Item]:
    """Yield the items of a generator, each computed in the neutral state; the caller's code between them is not."""
    end = object()
    while True:
        with NeutralState(new_on_cpu=True):
            item = next(steps, end)
        if item is end:
            return
        yield cast(_Item, item)


# float32 as torch's default dtype, which all threads share
_default_dtype = SharedSwitch(torch.get_default_dtype, torch.set_default_dtype, lambda _: DEFAULT_DTYPE)


def makes_default_dtype(node: OpNode) -> bool:
    """Whether torch's default dtype may affect a node: it makes floats from integers or from no tensors."""
    for tensor in node.inputs:  # most nodes read one, and this is asked of every node of a capture
        if tensor.dtype in _FLOATS:
            return False
    return node.attrs.get("dtype") is None and any(output.dtype in _FLOATS for output in node.outputs)


def reads_default_dtype(ir: IR) -> bool:
    """Whether torch's default dtype may affect a graph."""
    return any(map(makes_default_dtype, ir.all_nodes()))
