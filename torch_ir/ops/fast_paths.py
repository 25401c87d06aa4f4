"""Disable the code that torch runs instead of a model's own operators, while a model is observed."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

import torch
from torch import nn

from torch_ir.ir.graph.shared_switch import SharedSwitch
from torch_ir.ops.torch_internals import compile_stance, has_forward_hooks, set_compile_stance


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
_mkldnn: Any = torch.backends.mkldnn  # torch does not annotate it
_onednn = SharedSwitch(
    lambda: _mkldnn.enabled, lambda enabled: _mkldnn.set_flags(enabled, _fp32_precision=None), lambda _: False
)
_flash = SharedSwitch(torch.backends.cuda.flash_sdp_enabled, torch.backends.cuda.enable_flash_sdp, lambda _: False)
_stance = SharedSwitch(compile_stance, set_compile_stance, _StanceByThread)


def plain_attention() -> AbstractContextManager[None]:
    """Disable the fused kernels of torch's transformer layers, which capture cannot see; thread-safe.

    torch has one switch for the whole process: meanwhile, layers in other threads also run unfused.
    """
    return _attention


@contextmanager
def plain_kernels() -> Iterator[None]:
    """Disable oneDNN, whose GELU returns NaN for infinity, and flash attention, which may lose NaN; process-wide."""
    with _onednn, _flash:
        yield


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


@contextmanager
def masks_as_in_eager(modules: Sequence[nn.Module]) -> Iterator[None]:
    """Make torch's encoders and their layers compute the results of their fused kernels with operators, by hooks.

    Without gradients, eager mode takes every number of a mask that is not 0 as masked, where other layers add it to
    the scores, and an encoder returns zeros at padded positions. No capture can follow these kernels.
    """
    with ExitStack() as stack:
        if torch.backends.mha.get_fastpath_enabled():
            encoders = [module for module in modules if isinstance(module, nn.TransformerEncoder)]
            inside = {layer for encoder in encoders for layer in encoder.layers}
            for module in modules:
                if isinstance(module, nn.TransformerEncoderLayer) and module not in inside and _is_fused(module):
                    stack.enter_context(module.register_forward_pre_hook(_with_plain_masks, with_kwargs=True))
            for encoder in encoders:
                if all(map(_is_fused, encoder.layers)):
                    stack.enter_context(encoder.register_forward_pre_hook(_with_plain_masks, with_kwargs=True))
                if getattr(encoder, "use_nested_tensor", False) and not encoder.layers[0].training:
                    padding = _Padding(encoder)
                    stack.enter_context(encoder.register_forward_pre_hook(padding.begin, with_kwargs=True))
                    stack.enter_context(encoder.layers[-1].register_forward_hook(padding.end))
        yield


def _is_fused(layer: nn.Module) -> bool:
    """Whether eager mode runs one kernel for a layer, if its input has three dimensions."""
    if not isinstance(layer, nn.TransformerEncoderLayer) or layer.training:
        return False
    attention = layer.self_attn
    is_usual = attention.batch_first and attention.in_proj_bias is not None and attention.num_heads % 2 == 0
    is_hooked = any(map(has_forward_hooks, layer.modules()))
    has_kernel = bool(layer.activation_relu_or_gelu) and layer.norm1.eps == layer.norm2.eps
    return bool(is_usual and has_kernel and not is_hooked)


def _arguments(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of an encoder or layer by name."""
    mask = "mask" if isinstance(module, nn.TransformerEncoder) else "src_mask"
    return {**dict(zip(("src", mask, "src_key_padding_mask", "is_causal"), args, strict=False)), **kwargs}


def _with_plain_masks(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Replace masks of numbers by masks of truth values."""
    given = _arguments(module, args, kwargs)
    source = given.get("src")
    if not isinstance(source, torch.Tensor) or source.dim() != 3 or torch.is_autocast_enabled():
        return None
    numbers = {
        name: value
        for name, value in given.items()
        if name != "src" and isinstance(value, torch.Tensor) and value.is_floating_point()
    }
    return ((), {**given, **{name: value != 0 for name, value in numbers.items()}}) if numbers else None


class _Padding:
    """The padded positions of one call of an encoder, which its last layer sets to zero."""

    def __init__(self, encoder: nn.TransformerEncoder) -> None:
        self._calls = sum(layer is encoder.layers[-1] for layer in encoder.layers)  # of the last layer, in one call
        self._left = 0
        self._padded: torch.Tensor | None = None

    def begin(self, encoder: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        given = _arguments(encoder, args, kwargs)
        self._padded, source, mask = None, given.get("src"), given.get("src_key_padding_mask")
        is_plain = isinstance(source, torch.Tensor) and source.dim() == 3 and not source.is_nested
        if not is_plain or mask is None or given.get("mask") is not None or torch.is_autocast_enabled():
            return None
        self._left, valid = self._calls, mask.logical_not()
        if getattr(encoder, "mask_check", True):
            self._padded = mask.bool() & ~(~valid[:, :-1] & valid[:, 1:]).any()  # it must be on the right everywhere
            return None
        # eager mode takes as many tokens as are valid, from the left
        self._padded = torch.arange(valid.shape[1], device=valid.device) >= valid.sum(1, keepdim=True)
        return (), {**given, "src_key_padding_mask": self._padded}

    def end(self, layer: nn.Module, args: tuple[Any, ...], output: torch.Tensor) -> torch.Tensor:
        self._left -= 1
        if self._padded is None or self._left:
            return output
        return output.masked_fill(self._padded.unsqueeze(-1), 0.0)
