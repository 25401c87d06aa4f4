"""`meta_init`: build a model with parameters on meta and computed constants real."""

from __future__ import annotations

import mmap
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import register_module_parameter_registration_hook
from torch.nn.parameter import is_lazy
from torch.overrides import TorchFunctionMode
from torch.utils.weak import WeakTensorKeyDictionary

# Calls that return uninitialised or random tensors, which a checkpoint will fill in.
_ALLOCATE = frozenset(
    getattr(torch, name)
    for name in (
        "empty", "rand", "randn", "empty_strided", "empty_like", "rand_like", "randn_like", "randint", "randint_like",
        "normal",
    )
)  # fmt: skip
# Calls that fill a tensor: on meta they do nothing, slowly.
_FILL = frozenset((torch.Tensor.normal_, torch.Tensor.uniform_, torch.Tensor.zero_, torch.Tensor.fill_))

_is_suspended: ContextVar[bool] = ContextVar("meta_init_is_suspended", default=False)


class _MetaAllocations(TorchFunctionMode):
    """Moves uninitialised and random allocations to meta, and nothing else."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if _is_suspended.get():
            return function(*args, **kwargs)
        if function in _FILL and args[0].is_meta:
            return args[0]
        if function in _ALLOCATE:
            kwargs["device"] = "meta"
            kwargs.pop("pin_memory", None)
            kwargs.pop("generator", None)
        elif function is torch.zeros and not kwargs.keys() - {"size", "dtype"}:
            return _untouched_zeros(function(*args, **kwargs, device="meta"))
        return function(*args, **kwargs)


def _untouched_zeros(like: torch.Tensor) -> torch.Tensor:
    """Return real zeros in mapped memory, which uses no pages until it is written and is returned when it is freed.

    Most of them become parameters at once and are freed; the heap would keep their pages.
    """
    if not like.numel() or torch.get_default_device().type != "cpu":
        return torch.zeros_like(like, device=torch.get_default_device())
    memory = mmap.mmap(-1, like.numel() * like.element_size())
    return torch.frombuffer(memory, dtype=like.dtype).view(like.shape)


class _MetaParameters:
    """Moves computed parameters (`nn.Parameter(torch.ones(8))`) to meta; tied parameters stay tied.

    torch calls it for the modules of all threads; those that other threads build are left alone.
    """

    def __init__(self) -> None:
        self.thread = threading.get_ident()
        self.moved: Any = WeakTensorKeyDictionary()  # real parameter -> meta parameter

    def __call__(self, module: nn.Module, name: str, parameter: nn.Parameter | None) -> Any:
        if self.thread != threading.get_ident() or _is_suspended.get():
            return parameter
        if parameter is None or is_lazy(parameter) or parameter.is_meta:
            return parameter
        if parameter not in self.moved:
            self.moved[parameter] = nn.Parameter(parameter.detach().to("meta"), parameter.requires_grad)
        moved: nn.Parameter = self.moved[parameter]
        return moved


@contextmanager
def meta_init() -> Iterator[None]:
    """Create new parameters on meta; computed buffers (rotary frequencies, masks) keep their values.

    with torch_ir.meta_init():
        model = LlamaForCausalLM(config)
    """
    with register_module_parameter_registration_hook(_MetaParameters()), _MetaAllocations():
        yield


@contextmanager
def real_init() -> Iterator[None]:
    """Create tensors and parameters on the CPU, also inside `meta_init` or `with torch.device("meta")`."""
    token = _is_suspended.set(True)
    try:
        with torch.device("cpu"):
            yield
    finally:
        _is_suspended.reset(token)
