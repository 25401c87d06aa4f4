"""A configuration of `transformers` from `hf:TYPE?key=value&...`, a folder or a config.json; nothing is downloaded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from torch_ir.errors import CommandError, MissingExtraError, did_you_mean, first_line

PREFIX = "hf:"


def is_config(text: str) -> bool:
    """Whether a text names a configuration rather than a model of the user's own."""
    return text.startswith(PREFIX) or ":" not in text


def load_config(text: str) -> Any:
    """The configuration, with the overrides after `?` put in."""
    try:
        from transformers import CONFIG_MAPPING, AutoConfig
    except ImportError:
        raise MissingExtraError("a model of transformers", "transformers", "transformers") from None
    name, _, query = text.removeprefix(PREFIX).partition("?")
    overrides = dict(map(_override, filter(None, query.split("&"))))
    try:
        if Path(name).exists():
            return AutoConfig.from_pretrained(name, local_files_only=True, **overrides)
        if name not in CONFIG_MAPPING:
            raise CommandError(
                f"{name!r} is neither a folder with a config.json nor a model type of transformers"
                f"{did_you_mean(name, CONFIG_MAPPING)}"
            )
        config = AutoConfig.for_model(name, **overrides)
    except (OSError, ValueError, TypeError) as error:
        raise CommandError(f"{text}: {first_line(error)}") from None
    unknown = next((key for key in overrides if not hasattr(type(config)(), key)), None)
    if unknown is not None:
        known = [key for key in vars(type(config)()) if not key.startswith("_")]
        raise CommandError(f"{name} has no setting {unknown!r}{did_you_mean(unknown, known)}")
    return config


def _override(text: str) -> tuple[str, Any]:
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise CommandError(f"{text!r} is not a setting; write it as hf:llama?num_hidden_layers=8&hidden_size=1024")
    try:
        return key, json.loads(value)
    except ValueError:
        return key, value  # a word, such as bfloat16
