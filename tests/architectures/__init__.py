"""A catalogue of tiny `transformers` models: one row each, random weights, no downloads.

A row names its model class, what differs from the shared sizes, and the kind of inputs it takes.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn

from . import audio, multimodal, text, vision
from .inputs import make_inputs
from .sizes import SIZES, Row

Kind = Literal["causal", "encoder", "encoder_decoder", "vision", "audio", "multimodal", "moe", "state_space", "other"]

TABLES: dict[Kind, list[Row]] = {
    "causal": text.CAUSAL,
    "moe": text.MOE,
    "state_space": text.STATE_SPACE,
    "encoder": text.ENCODER,
    "encoder_decoder": text.ENCODER_DECODER,
    "vision": vision.VISION,
    "audio": audio.AUDIO,
    "multimodal": multimodal.MULTIMODAL,
    "other": multimodal.OTHER,
}

# Captured on real tensors only: Python needs numbers that only the data has.
NEEDS_VALUES: dict[str, str] = {
    "dbrx": "loops over the experts in use",
    "longformer": "pads by a tensor value",
    "led": "pads by a tensor value",
    "encodec": "pads by lengths that are tensor values",
    "mimi": "pads by lengths that are tensor values",
    "fastspeech2_conformer": "the number of frames depends on predicted durations",
}
# Builds and runs, and is not captured at all.
NOT_CAPTURED: dict[str, str] = {
    "t5gemma": "its config always returns a cache of an unsupported class",
}
# Not captured fast, so that another method is tried: the reason in the log.
NOT_FAST: dict[str, str] = {
    "mimi": "aten.pad.default has a number that depends on the data",
    "encodec": "aten.pad.default has a number that depends on the data",
    "fastspeech2_conformer": "aten.zeros.default has a number that depends on the data",
    "siglip2": "aten._upsample_bilinear2d_aa.vec has a number that depends on the data",
    "jetmoe": "aten.split_with_sizes.default has a number that depends on the data",
    "fsmt": "returns memory that several of its inputs share",
    "dbrx": "the size of a result depends on the data",
    "xmod": "the size of a result depends on the data",
    "superpoint": "the size of a result depends on the data",
    "funnel": "writes to the result of OpNode('reshape_1', 'aten.reshape.default')",
    "autoformer": "is invalid for input of size",
    "t5gemma": "the model returns a EncoderDecoderCache",
}

# Recorded, with another graph than that of torch.export, and why.
UNLIKE_EXPORT: dict[str, str] = {
    "longformer": "torch.export cannot follow its branch on data",
    "led": "torch.export cannot follow its branch on data",
    "reformer": "its numbers are constants",
    "llava": "a check of the number of images is one node",
    "paligemma": "a check of the number of images is one node",
    "big_bird": "unsqueeze_ is a view, and other operators stay whole",
}

# With a batch and a length that vary, the beginning of what `equality.compare` returns for others than `NOT_FAST` and
# those that depend on the data. Constraints differ only in multiples of a size: both lists accept the same sizes.
NOT_FAST_OPEN: dict[str, str] = {
    "longt5": "OpNode('add_41', 'aten.add.Tensor') returns another dtype or layout",
    "mobilenet_v1": "OpNode('dropout', 'aten.dropout.default') writes to the result of",
    "mobilenet_v2": "OpNode('dropout', 'aten.dropout.default') writes to the result of",
    "qwen3_next": '"constraints": ',
    "wavlm": '"constraints": ',
}


@dataclass(frozen=True)
class Architecture:
    """A tiny model with random weights, and its keyword inputs."""

    name: str
    kind: Kind
    build: Callable[[], nn.Module]
    inputs: Callable[[], dict[str, Tensor]]


def build_model(model: str, overrides: Mapping[str, Any]) -> nn.Module:
    """Build a class of `transformers` in eval mode, from the shared sizes of its config and the overrides."""
    import transformers  # slow to import, so only when a model is wanted

    model_class = getattr(transformers, model)
    config_class = model_class.config_class
    shared = shared_sizes(config_class)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        built: nn.Module = model_class(config_class(**{**shared, **overrides})).eval()
    return built.to(torch.get_default_device())  # a few parameters are born on the CPU, also under torch.device


def shared_sizes(config_class: Any) -> dict[str, Any]:
    """The shared sizes that a class of configurations has a field for, by its own names."""
    known = {field.name for field in fields(config_class)}
    named = {name if name in known else config_class.attribute_map.get(name, name): SIZES[name] for name in SIZES}
    return {name: size for name, size in named.items() if name in known}


def architectures() -> list[Architecture]:
    """Every row of every table."""
    return [
        Architecture(name, kind, partial(build_model, model, overrides), partial(make_inputs, inputs))
        for kind, rows in TABLES.items()
        for name, model, overrides, inputs in rows
    ]
