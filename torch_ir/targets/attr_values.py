"""Convert a handler's value to plain JSON: dataclasses, dicts, lists, numbers, strings and None."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from torch_ir.errors import SerializationError

_DEPTH = 50


def to_json(value: Any, path: str, depth: int = 0) -> Any:
    """Return the value as JSON, a dataclass as an object that begins with its `type`; raise if that is impossible."""
    if depth > _DEPTH:
        raise SerializationError(f"nested deeper than {_DEPTH} levels, or recursive", path)
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        if not math.isfinite(value):
            raise SerializationError(f"JSON cannot represent the number {value}", path)
        return float(value)
    if isinstance(value, str):
        return _text(value, path)
    if isinstance(value, (list, tuple)):
        return [to_json(item, f"{path}[{index}]", depth + 1) for index, item in enumerate(value)]
    if isinstance(value, dict):
        return {_key(key, path): to_json(item, f"{path}.{key}", depth + 1) for key, item in value.items()}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = [field.name for field in dataclasses.fields(value)]
        parts = {name: to_json(getattr(value, name), f"{path}.{name}", depth + 1) for name in names}
        return {"type": type(value).__name__, **parts}
    raise SerializationError(
        f"JSON cannot represent a {type(value).__name__}; use its name, or a list of numbers", path
    )


def _text(value: str, path: str) -> str:
    try:
        value.encode()
    except UnicodeEncodeError:
        raise SerializationError("JSON cannot represent an unpaired surrogate", path) from None
    return str.__str__(value)  # for a string enumeration, its value


def _key(key: Any, path: str) -> str:
    if isinstance(key, str):
        return _text(key, path)
    raise SerializationError(f"JSON cannot represent {key!r:.40} as a key; keys are strings", path)
