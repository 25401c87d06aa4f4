"""The entry points of a language model, prefill and decode: their calls, examples and dynamic sizes."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.export import Dim

from torch_ir.errors import ExportError
from torch_ir.ir import IR
from torch_ir.llm.cache_layout import cache_outputs
from torch_ir.llm.caches import Caches
from torch_ir.ops.torch_types import TORCH_DTYPES

# Sizes to trace with, by name: torch specialises 0 and 1, and may identify equal sizes.
_SAMPLES = {"batch": 2, "seq": 8, "past": 6, "past + 1": 7, "source": 9}
# Configuration fields with the width of the convolution before recurrent layers.
_SPANS = ("conv_kernel", "conv_kernel_size", "conv1d_width", "conv_L_cache", "linear_conv_kernel_dim", "mamba_d_conv")
_RECOMPUTING = ("phi3", "phimoe", "phi4_multimodal")  # types that recompute the cache when longrope switches
_SAMPLE = 5  # of a size that is not listed: of features whose number depends on the data
_FAR = 1 << 20  # the longest sequence of a model without a limit


class Example(NamedTuple):
    """A tensor to trace with, and its dynamic dimensions."""

    tensor: Tensor
    varying: dict[int, Any]


class Call(NamedTuple):
    """A model whose `forward` is one entry point, its keyword inputs, and the dynamic sizes."""

    model: nn.Module
    inputs: dict[str, Any]
    dynamic_shapes: dict[str, Any]
    fixed: Mapping[str, Tensor] = MappingProxyType({})  # inputs whose values are part of the capture


@dataclass
class DecoderOnly:
    """The calls of a decoder-only model; `batch` and `prompt` are sizes, or None if dynamic."""

    model: Any
    caches: Caches
    batch: int | None = None
    prompt: int | None = None
    padding: bool = False
    all_logits: bool = False
    # pass the positions that `generate` passes, instead of the model's default; if None, not in decode either
    counts_from_zero: bool | None = False

    @property
    def has_positions(self) -> bool:
        """Whether positions are inputs of the graphs."""
        return False

    def eager(self) -> tuple[Callable[..., Any], Callable[..., Any]]:
        """Return prefill and decode as functions of their inputs, for a model with weights."""
        forward = partial(type(self.model).forward, self.model)
        return partial(self._prefill, forward), partial(self._decode, forward)

    def prefill(self) -> Call:
        tokens = self._ids("seq", self.prompt)
        return self._call(self._prefill, {"input_ids": tokens, **({"attention_mask": tokens} if self.padding else {})})

    def decode(self, prefill: IR) -> Call:
        """Return the call for one more token, with a cache like that of prefill."""
        return self._call(self._decode, self._decode_examples(prefill))

    def _decode_examples(self, prefill: IR) -> dict[str, Any]:
        examples: dict[str, Any] = {"input_ids": self._ids("", 1), "cache": self._cache(prefill)}
        if self.caches.length is not None:
            examples["position"] = Example(torch.empty((), dtype=torch.int64, device="meta"), {})
        if self.padding:
            examples["attention_mask"] = self._ids("past + 1", self.caches.length)
        return examples

    def _prefill(self, forward: Callable[..., Any], **inputs: Any) -> Any:
        ids, mask = inputs["input_ids"], inputs.get("attention_mask")
        return self._step(forward, self.caches.empty(), ids, mask, self._positions(ids, mask))

    def _positions(self, ids: Tensor, mask: Tensor | None) -> Tensor | None:
        """Return the positions of a prompt; None if the model counts them itself."""
        if mask is not None:
            return (mask.cumsum(-1) - 1).clamp(min=0)
        return torch.arange(ids.shape[1], device=ids.device)[None] if self.counts_from_zero else None

    def _decode(
        self, forward: Callable[..., Any], cache: Mapping[str, Tensor], position: Tensor | None = None, **inputs: Any
    ) -> Any:
        ids, attention_mask = inputs.pop("input_ids"), inputs.pop("attention_mask", None)
        if attention_mask is not None:
            positions = attention_mask.sum(-1, keepdim=True) - 1
        else:
            positions = _next_position(cache) if position is None else position.reshape(1, 1)
            positions = None if self.counts_from_zero is None else positions
        held = self.caches.filled(cache, position)
        return self._changed(self._step(forward, held, ids, attention_mask, positions, inputs))

    def _changed(self, output: dict[str, Any]) -> dict[str, Any]:
        """Return the output of decode without the tensors of the cache that it does not change."""
        kept = {name: tensor for name, tensor in output["cache"].items() if not self.caches.is_constant(name)}
        return {**output, "cache": kept}

    def _step(
        self,
        forward: Callable[..., Any],
        cache: Any,
        ids: Tensor,
        mask: Tensor | None,
        positions: Tensor | None,
        further: Mapping[str, Any] = MappingProxyType({}),
    ) -> dict[str, Any]:
        known = inspect.signature(forward).parameters
        options: dict[str, Any] = {"attention_mask": mask, "position_ids": positions}
        if "logits_to_keep" in known and not self.all_logits:
            options["logits_to_keep"] = 1
        options = {name: value for name, value in options.items() if value is not None and name in known}
        options["cache_params" if "cache_params" in known else "past_key_values"] = cache
        logits = forward(input_ids=ids, use_cache=True, return_dict=True, **options, **further).logits
        if not self.all_logits and "logits_to_keep" not in known:
            logits = logits[:, -1:]
        return {"logits": logits, "cache": self.caches.tensors(cache)}

    def _ids(self, name: str, size: int | None) -> Example:
        return self._example(torch.int64, ("batch", self.batch), (name, size))

    def _cache(self, prefill: IR) -> dict[str, Example]:
        """Return examples of the cache tensors of prefill, at the lengths in decode."""
        examples = {}
        for name, tensor in cache_outputs(prefill).items():
            sizes: list[tuple[str, Any]] = [("", dim) for dim in tensor.shape]
            sizes[0] = ("batch", self.batch)
            if ".cross." in name:
                sizes[2] = ("source", self.prompt)
            elif name.endswith((".key", ".value")) and not self.caches.is_constant(name):
                sizes[2] = ("past", self.caches.length)
            if name.endswith(".index"):
                sizes[1] = ("past", self.caches.length)
            examples[name] = self._example(TORCH_DTYPES[tensor.dtype], *sizes)
        return examples

    def _example(self, dtype: torch.dtype, *sizes: tuple[str, Any]) -> Example:
        """Return a tensor whose sizes are numbers, or dynamic by name."""
        varying = {dim: self._size(name) for dim, (name, size) in enumerate(sizes) if size is None}
        shape = [
            min(_SAMPLES.get(name, _SAMPLE), varying[dim].max) if size is None else int(size)
            for dim, (name, size) in enumerate(sizes)
        ]
        return Example(torch.empty(shape, dtype=dtype, device="meta"), varying)

    def _size(self, name: str) -> Any:
        """Return a dynamic size with its range; a prompt leaves room for one more token."""
        known = [getattr(self._config, name, None) for name in ("max_position_embeddings", "max_seq_len")]
        longest = min(next(filter(None, known), _FAR), recomputed_after(self._config) or _FAR)
        if name == "past + 1":
            return self._size("past") + 1
        low, high = {
            "batch": (1, _FAR),
            "seq": (self._shortest(), (self.caches.length or longest) - 1),
            "past": (0, longest - 1),
            "source": (2, longest),
        }.get(name, (1, _FAR))
        if low >= high:
            problem = f"{type(self.model).__name__} has an empty range for {name!r}: {low} to {high}"
            raise ExportError(f"{problem}; give the model more positions (max_position_embeddings, cache_length)")
        return Dim(name, min=low, max=high)

    def _shortest(self) -> int:
        """Return the shortest prompt: one token, or fewer than a convolution spans, would take another code path."""
        spans = [getattr(self._config, name, 0) for name in _SPANS] if self.caches.has_states else []
        return max(2, *(span for span in spans if isinstance(span, int)), 0)

    @property
    def _config(self) -> Any:
        return self.model.config.get_text_config(decoder=True)

    def _call(self, function: Callable[..., Any], examples: Mapping[str, Any]) -> Call:
        entry = copy.copy(self.model)  # keys and module paths stay those of the model
        original = partial(type(self.model).forward, entry)

        def forward(**inputs: Any) -> Any:
            return function(original, **inputs)

        words = [inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD) for name in examples]
        forward.__signature__ = inspect.Signature(words)  # type: ignore[attr-defined]  # read by torch
        entry.forward = forward
        return Call(entry, _each(examples, 0), _each(examples, 1))


def recomputed_after(config: Any) -> int | None:
    """Return the length after which `generate` recomputes the whole cache, which decode does not do; None if never."""
    rope = getattr(config, "rope_parameters", None) or {}
    if config.model_type not in _RECOMPUTING or rope.get("rope_type") != "longrope":
        return None
    length = rope.get("original_max_position_embeddings") or config.original_max_position_embeddings
    return int(length)


def _next_position(cache: Mapping[str, Tensor]) -> Tensor | None:
    """Return the position of the new token from the cache length; not every model derives it itself."""
    keys = next((tensor for name, tensor in cache.items() if name.endswith(".key")), None)
    return None if keys is None else torch.arange(keys.shape[2], keys.shape[2] + 1, device=keys.device)[None]


def _each(examples: Mapping[str, Any], index: int) -> dict[str, Any]:
    """Return the tensors, or the dynamic dimensions, of nested examples."""
    return {
        name: example[index] if isinstance(example, Example) else _each(example, index)
        for name, example in examples.items()
    }
