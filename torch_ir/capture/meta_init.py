"""Build a model of any size without its weights, yet with every computed constant real."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import register_module_parameter_registration_hook
from torch.nn.parameter import is_lazy
from torch.overrides import TorchFunctionMode

# Calls that allocate what a checkpoint will fill in: uninitialised or random tensors.
_ALLOCATE = frozenset(
    getattr(torch, name)
    for name in [
        "empty",
        "rand",
        "randn",
        "empty_strided",
        "empty_like",
        "rand_like",
        "randn_like",
        "randint",
        "randint_like",
        "normal",
    ]
)


class _MetaAllocations(TorchFunctionMode):
    """Send uninitialised and random allocations to meta, leave every other computation alone."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if function in _ALLOCATE:
            kwargs["device"] = "meta"
            kwargs.pop("pin_memory", None)
            kwargs.pop("generator", None)
        return function(*args, **kwargs)


class _MetaParameters:
    """Send parameters that were computed (`nn.Parameter(torch.ones(8))`) to meta; a tied one stays one."""

    def __init__(self) -> None:
        self.moved: dict[nn.Parameter, nn.Parameter] = {}

    def __call__(self, module: nn.Module, name: str, parameter: nn.Parameter | None) -> Any:
        if parameter is None or is_lazy(parameter) or parameter.is_meta:
            return parameter
        if parameter not in self.moved:
            self.moved[parameter] = nn.Parameter(parameter.detach().to("meta"), parameter.requires_grad)
        return self.moved[parameter]


@contextmanager
def meta_init() -> Iterator[None]:
    """Inside, new parameters are on meta, while computed buffers (rotary frequencies, masks) keep their values.

    with torch_ir.meta_init():
        model = LlamaForCausalLM(config)
    """
    hook = register_module_parameter_registration_hook(_MetaParameters())
    try:
        with _MetaAllocations():
            yield
    finally:
        hook.remove()
