"""The entry points of an encoder-decoder: prefill runs the encoder, which may read images or sound, too."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from transformers.modeling_outputs import BaseModelOutput, BaseModelOutputWithPooling

from torch_ir.errors import ExportError
from torch_ir.ir import IR
from torch_ir.llm.cache_layout import cache_outputs
from torch_ir.llm.entry_points import Call, DecoderOnly, Example
from torch_ir.llm.placeholder_check import counted_placeholders
from torch_ir.ops.torch_types import TORCH_DTYPES


@dataclass
class EncoderDecoder(DecoderOnly):
    """The calls of an encoder-decoder: prefill runs the encoder and the first token, decode reads their cache."""

    encoder_input: Tensor | None = None
    example: Mapping[str, Any] = field(default_factory=dict)  # what a processor returns, with the sizes of the graphs

    def __post_init__(self) -> None:
        self.example = {name: value for name, value in self.example.items() if isinstance(value, Tensor)}
        known = inspect.signature(type(self.model).forward).parameters
        if unread := [name for name in self.example if name not in known]:
            raise ExportError(f"forward of {type(self.model).__name__} does not take {unread[0]}")
        batches = {value.shape[0] for value in self.example.values() if value.dim()}
        if self.batch is not None:
            batches.add(self.batch)
        if len(batches) > 1:
            raise ExportError(f"the inputs have different batches: {', '.join(map(str, sorted(batches)))}")
        self.batch = next(iter(batches), None)

    def prefill(self) -> Call:
        if self.example:
            read = {name: Example(value.to("meta"), {}) for name, value in self.example.items()}
            return self._call(self._whole_prefill, {**read, "decoder_input_ids": self._ids("", 1)})
        source = self._ids("source", self.prompt)
        given = source
        if self.encoder_input is not None:
            rest = [("", size) for size in self.encoder_input.shape[1:]]
            given = self._example(self.encoder_input.dtype, ("batch", self.batch), *rest)
        examples = {self.model.main_input_name: given, "decoder_input_ids": self._ids("", 1)}
        return self._call(self._prefill, {**examples, **({"attention_mask": source} if self.padding else {})})

    def decode(self, prefill: IR) -> Call:
        examples: dict[str, Any] = {"decoder_input_ids": self._ids("", 1), "cache": self._cache(prefill)}
        if self.caches.length is not None:
            examples["position"] = Example(torch.empty((), dtype=torch.int64, device="meta"), {})
        if self.padding:
            examples["attention_mask"] = self._ids("source", self.prompt)
        if "attention_mask" in self.example:
            examples["attention_mask"] = Example(self.example["attention_mask"].to("meta"), {})
        return self._call(self._decode, examples)

    def _cache(self, prefill: IR) -> dict[str, Example]:
        found = super()._cache(prefill)
        for name, tensor in cache_outputs(prefill).items() if self.example else ():
            if ".cross." in name:  # as many entries as the encoder makes of the example
                sizes = [("", size) for size in tensor.shape]
                found[name] = self._example(TORCH_DTYPES[tensor.dtype], *sizes)
        return found

    def _whole_prefill(self, forward: Callable[..., Any], **inputs: Any) -> Any:
        """Run the encoder inside forward, where it merges its inputs."""
        cache = self.caches.empty()
        with counted_placeholders(self.model.base_model):
            output = forward(**inputs, past_key_values=cache, use_cache=True, return_dict=True)
        return {"logits": output.logits, "cache": self.caches.tensors(cache)}

    def _prefill(self, forward: Callable[..., Any], **inputs: Any) -> Any:
        read = {name: value for name, value in inputs.items() if name != "decoder_input_ids"}
        encoded = self.model.get_encoder()(**read, return_dict=True)
        kept = {name: value for name, value in inputs.items() if name != self.model.main_input_name}
        return self._step_from(forward, self.caches.empty(), encoded, **kept)

    def _decode(
        self, forward: Callable[..., Any], cache: Mapping[str, Tensor], position: Tensor | None = None, **inputs: Any
    ) -> Any:
        held = self.caches.filled(cache, position)
        cross = cache["layers.0.cross.key"]
        # the cache already contains the encoder's results; only their size is used
        hidden: Any = cross.new_zeros(cross.shape[0], cross.shape[2], self._config.hidden_size)
        encoded: Any = BaseModelOutput(last_hidden_state=hidden)
        if self.example:  # decoders of images may attend to pooled results
            encoded = BaseModelOutputWithPooling(last_hidden_state=hidden, pooler_output=hidden)
        return self._changed(self._step_from(forward, held, encoded, **inputs))

    def _step_from(self, forward: Callable[..., Any], cache: Any, encoded: Any, **inputs: Any) -> dict[str, Any]:
        output = forward(encoder_outputs=encoded, past_key_values=cache, use_cache=True, return_dict=True, **inputs)
        return {"logits": output.logits, "cache": self.caches.tensors(cache)}
