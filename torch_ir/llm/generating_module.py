"""The module of a model that generates: some models encode, and then call `generate` of their language model."""

from __future__ import annotations

from typing import Any

from transformers import GenerationMixin

from torch_ir.errors import ExportError

_CROSS = ("crossattention", "encoder_attn", "EncDecAttention")  # names of modules


def generating_module(model: Any) -> Any:
    """Return the module whose `generate` that of a model calls after encoding; the model itself if there is none."""
    if type(model).generate is GenerationMixin.generate:
        return model
    return next((each for each in model.children() if isinstance(each, GenerationMixin)), model)


def decoding_module(model: Any) -> Any:
    """Return the module that decodes after the prompt; raise ExportError if it needs more than the cache."""
    found = generating_module(model)
    if found is not model and any(name.rpartition(".")[2] in _CROSS for name, _ in found.named_modules()):
        raise ExportError(f"{type(found).__name__} of {type(model).__name__} attends to the image again for each token")
    return found
