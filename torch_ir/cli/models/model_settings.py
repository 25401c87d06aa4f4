"""Settings after a model's name: `?num_hidden_layers=8&hidden_size=1024`."""

from __future__ import annotations

import json
from typing import Any

from torch_ir.errors import CommandError

_WORDS = {"True": True, "False": False, "None": None}


def split_settings(text: str) -> tuple[str, dict[str, Any]]:
    """Split a text into the name before the first `?` and the settings after it."""
    name, _, query = text.partition("?")
    return name, dict(_setting(part, name) for part in query.split("&") if part)


def _setting(text: str, name: str) -> tuple[str, Any]:
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise CommandError(f"{text!r} is not a setting; write it as {name}?key=value&other=value")
    try:
        return key, json.loads(value)
    except ValueError:
        return key, _WORDS.get(value, value)  # a word, such as bfloat16
