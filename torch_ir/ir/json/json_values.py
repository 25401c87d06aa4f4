"""Attribute values and structures as JSON, lossless and canonical; what JSON lacks is a one-key `{"$…": …}`.

bfloat16          {"$dtype": "bfloat16"}          -inf         {"$float": "-inf"}
cuda:0            {"$device": "cuda:0"}           1+2j         {"$complex": [1.0, 2.0]}
channels_last     {"$memory_format": "…"}         2*seq        {"$expr": "2*seq"}
strided           {"$layout": "strided"}          2**80        {"$int": "1208925819614629174706176"}
a function        {"$function": "body"}           tensor 3     {"$tensor": 3}
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from torch_ir.errors import GraphError, SerializationError
from torch_ir.ir.graph.attr_types import (
    LAYOUTS,
    MEMORY_FORMATS,
    Device,
    Dtype,
    FunctionRef,
    Layout,
    MemoryFormat,
    is_device,
)
from torch_ir.ir.graph.io_tree import BRANCH_KINDS, Branch, Slot
from torch_ir.ir.json.json_fields import allow_keys, field, optional, read_dtype, typed
from torch_ir.ir.sizes.expressions import Expr

MAX_NESTING = 50  # levels of lists and structures in one value; for a whole file see `Limits`
MAX_DIGITS = 100
PLAIN = frozenset((type(None), bool, int, float, str))
INT64 = 1 << 63
_LARGEST = 10**MAX_DIGITS
_BRANCH_KEYS = frozenset(("$branch", "items", "keys", "type"))
TAGS: dict[type, str] = {
    Expr: "$expr",
    Dtype: "$dtype",
    Device: "$device",
    Layout: "$layout",
    MemoryFormat: "$memory_format",
    FunctionRef: "$function",
}


def encode(value: Any, depth: int = 0) -> Any:
    """Encode a value as JSON."""
    kind = type(value)
    if kind is int:
        return value if -INT64 <= value < INT64 else _encode_large(value)
    if value is None or kind is bool or kind is str:
        return value
    if kind is float:
        return value if math.isfinite(value) else {"$float": str(value)}
    if kind in TAGS:
        return {TAGS[kind]: str(value)}
    if kind is complex:
        return {"$complex": [encode(value.real), encode(value.imag)]}
    if kind is Slot:
        return {"$tensor": int(value)}
    if depth >= MAX_NESTING:
        raise SerializationError(f"a value is nested deeper than {MAX_NESTING} levels", rule="R2")
    if isinstance(value, (list, tuple)):
        return [encode(item, depth + 1) for item in value]
    if kind is Branch:
        return _encode_branch(value, depth)
    if kind is dict and all(isinstance(key, str) and not key.startswith("$") for key in value):
        return {key: encode(item, depth + 1) for key, item in value.items()}
    raise SerializationError(f"{value!r:.80} of type {kind.__name__} cannot be written to a file", rule="R11")


def _encode_large(value: int) -> dict[str, str]:
    if not -_LARGEST < value < _LARGEST:
        raise SerializationError(f"a whole number has more than {MAX_DIGITS} digits", rule="R3")
    return {"$int": str(value)}


def _encode_branch(branch: Branch, depth: int) -> dict[str, Any]:
    record: dict[str, Any] = {"$branch": branch.kind, "items": [encode(item, depth + 2) for item in branch.items]}
    if branch.keys:
        record["keys"] = [encode(key, depth + 2) for key in branch.keys]
    if branch.type_name:
        record["type"] = branch.type_name
    return record


def decode(value: Any, path: str, depth: int = 0) -> Any:
    """Decode a value written by `encode`."""
    if type(value) in PLAIN:
        return value
    try:
        return _decode(value, depth)
    except SerializationError as error:
        error.prefix(path)
        raise


def _decode(value: Any, depth: int) -> Any:
    """Decode a value that is not plain; callers prepend to the path of an error."""
    if depth > MAX_NESTING:
        raise SerializationError(f"a value is nested deeper than {MAX_NESTING} levels", "$", rule="R2")
    if isinstance(value, (list, tuple)):
        return _decode_list(value, depth)
    if not isinstance(value, dict):
        raise SerializationError(f"{value!r:.60} of type {type(value).__name__} is not JSON", "$", rule="R3")
    if "$branch" in value:
        return _decode_branch(value, "$", depth)
    tags = [key for key in value if not isinstance(key, str) or key.startswith("$")]
    if not tags:
        return {key: decode(item, f"$.{key:.200}", depth + 1) for key, item in value.items()}
    if len(value) != 1 or tags[0] not in _READERS:
        raise SerializationError(f"unknown tag {tags[0]!r:.60}", "$", rule="R5")
    return _READERS[tags[0]](value[tags[0]], f"$.{tags[0]}")


def _decode_list(items: Sequence[Any], depth: int) -> list[Any]:
    found: list[Any] = []
    try:
        for item in items:
            found.append(item if type(item) in PLAIN else _decode(item, depth + 1))
    except SerializationError as error:
        error.prefix(f"$[{len(found)}]")
        raise
    return found


def _decode_branch(record: dict[str, Any], path: str, depth: int) -> Branch:
    allow_keys(record, _BRANCH_KEYS, path)
    kind = _one_of(record["$branch"], BRANCH_KINDS, f"{path}.$branch")
    items = tuple(
        decode(item, f"{path}.items[{index}]", depth + 2)
        for index, item in enumerate(field(record, "items", list, path))
    )
    keys = tuple(
        _decode_key(key, f"{path}.keys[{index}]", depth + 2)
        for index, key in enumerate(optional(record, "keys", list, path) or [])
    )
    if len(set(keys)) != len(keys):
        raise SerializationError("duplicate key", f"{path}.keys", rule="R8")
    try:
        return Branch(kind, items, keys, optional(record, "type", str, path) or "")
    except GraphError as error:
        raise SerializationError.of(error, path) from None


def _decode_key(key: Any, path: str, depth: int) -> Any:
    """Decode a key of a dict: a plain value, or a tuple of them."""
    if isinstance(key, (list, tuple)):
        if depth > MAX_NESTING:
            raise SerializationError(f"a key is nested deeper than {MAX_NESTING} levels", path, rule="R2")
        return tuple(_decode_key(item, f"{path}[{index}]", depth + 1) for index, item in enumerate(key))
    found = decode(key, path, depth)
    if isinstance(found, (dict, Branch)):
        raise SerializationError("a key must be a plain value", path, rule="R4")
    return found


def plain_json(value: Any, path: str, depth: int = 0) -> Any:
    """Return the value if it is plain JSON that needs no tags."""
    if depth > MAX_NESTING:
        raise SerializationError(f"nested deeper than {MAX_NESTING} levels", path, rule="R2")
    if isinstance(value, dict) and all(type(key) is str for key in value):
        return {key: plain_json(item, f"{path}.{key:.200}", depth + 1) for key, item in value.items()}
    if isinstance(value, list):
        return [plain_json(item, f"{path}[{index}]", depth + 1) for index, item in enumerate(value)]
    if type(value) not in PLAIN or isinstance(encode(value), dict):
        message = f"{value!r:.60} of type {type(value).__name__} cannot be written as JSON"
        raise SerializationError(message, path, rule="R3")
    return value


def _one_of(value: Any, known: Any, path: str) -> str:
    if not isinstance(value, str) or value not in known:
        raise SerializationError(f"{value!r:.60} is not one of {', '.join(sorted(known))}", path, rule="R5")
    return value


def _read_int(text: Any, path: str) -> int:
    digits = typed(text, str, path).removeprefix("-")
    if len(digits) > MAX_DIGITS or not (digits.isascii() and digits.isdecimal()):
        message = f"{text!r:.60} is not a whole number of at most {MAX_DIGITS} digits"
        raise SerializationError(message, path, rule="R3")
    return int(text)


def _read_complex(parts: Any, path: str) -> complex:
    numbers = [decode(part, path, MAX_NESTING) for part in typed(parts, list, path)]
    if len(numbers) != 2 or not all(type(number) in (int, float) for number in numbers):
        raise SerializationError("a complex number is a list of two numbers", path, rule="R3")
    return complex(*numbers)


def _read_device(text: Any, path: str) -> Device:
    if not is_device(typed(text, str, path)):
        raise SerializationError(f"unknown device {text!r:.60}", path, rule="R5")
    return Device(text)


_READERS: dict[str, Callable[[Any, str], Any]] = {
    "$int": _read_int,
    "$float": lambda text, path: float(_one_of(text, ("inf", "-inf", "nan"), path)),
    "$complex": _read_complex,
    "$expr": lambda text, path: Expr(typed(text, str, path)),
    "$dtype": lambda text, path: Dtype(read_dtype(typed(text, str, path), path)),
    "$device": _read_device,
    "$layout": lambda text, path: Layout(_one_of(text, LAYOUTS, path)),
    "$memory_format": lambda text, path: MemoryFormat(_one_of(text, MEMORY_FORMATS, path)),
    "$function": lambda text, path: FunctionRef(typed(text, str, path)),
    "$tensor": lambda index, path: Slot(typed(index, int, path)),
}
