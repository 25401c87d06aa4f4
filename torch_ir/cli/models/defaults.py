"""Default inputs for models of transformers and timm, from their configurations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

_TOKENS = 128
_SAMPLES = 16_000  # a second of sound


def default_inputs(model: Any) -> list[str]:
    """Return inputs in command-line syntax; none for a model without a known configuration."""
    described = getattr(model, "pretrained_cfg", None)
    if isinstance(described, dict) and "input_size" in described:
        return [_spec("float32", described["input_size"])]
    main, config = getattr(model, "main_input_name", None), getattr(model, "config", None)
    if config is None or main not in _SHAPES:
        return []
    names = [main]
    if main == "input_ids" and hasattr(model, "logit_scale"):  # compares texts with images, like CLIP
        names.append("pixel_values")
    if config.is_encoder_decoder and main != "pixel_values":
        names.append("decoder_input_ids")
    numbers = str(model.dtype).removeprefix("torch.")
    return [f"{name}={_spec('int64' if name.endswith('_ids') else numbers, _SHAPES[name](config))}" for name in names]


def _spec(dtype: str, shape: tuple[int, ...]) -> str:
    return f"{dtype}[{','.join(map(str, (1, *shape)))}]"


def _ids(config: Any) -> tuple[int, ...]:
    text = getattr(config, "text_config", config)
    longest = (getattr(text, name, None) for name in ("max_position_embeddings", "max_target_positions"))
    return (min(_TOKENS, *(size for size in longest if isinstance(size, int) and size > 0), _TOKENS),)


def _pixels(config: Any) -> tuple[int, ...]:
    seen = getattr(config, "vision_config", config)
    size = getattr(seen, "image_size", 224)
    height, width = (size, size) if isinstance(size, int) else size
    picture = (getattr(seen, "num_channels", 3), height, width)
    return (seen.num_frames, *picture) if hasattr(seen, "num_frames") else picture


def _features(config: Any) -> tuple[int, ...]:
    if hasattr(config, "num_mel_bins"):
        return config.num_mel_bins, 2 * config.max_source_positions
    return _TOKENS, config.input_feat_per_channel


def _sound(config: Any) -> tuple[int, ...]:
    return (config.max_length, config.num_mel_bins) if hasattr(config, "num_mel_bins") else (_SAMPLES,)


_SHAPES: dict[str, Callable[[Any], tuple[int, ...]]] = {
    "input_ids": _ids,
    "decoder_input_ids": _ids,
    "pixel_values": _pixels,
    "input_features": _features,
    "input_values": _sound,
}
