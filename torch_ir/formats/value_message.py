"""Convert values of attributes and trees from the JSON document to the message `Value`, and back."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from torch_ir.errors import SerializationError

Fields = dict[str, Any]  # constructor arguments of a message, with nested messages as dicts

MAX_NESTING = 30  # each level is two of protobuf's, whose readers stop at a hundred
_PLAIN: dict[type, str] = {bool: "boolean", int: "integer", float: "real", str: "text"}
_TAGS = {
    "$dtype": "dtype",
    "$device": "device",
    "$layout": "layout",
    "$memory_format": "memory_format",
    "$expr": "expression",
    "$function": "function",
    "$int": "big_integer",
    "$tensor": "tensor",
}
_TAG_OF = {field: tag for tag, field in _TAGS.items()}
_AS_THEY_ARE = frozenset(_PLAIN.values())


def value_fields(value: Any, depth: int = 0) -> Fields:
    """Return the fields of a value of the document."""
    kind = type(value)
    if value is None:
        return {"none": True}
    if kind in _PLAIN:
        return {_PLAIN[kind]: value}
    if depth > MAX_NESTING:
        message = f"a value is nested deeper than the {MAX_NESTING} levels of protobuf files"
        raise SerializationError(message, rule="R2")
    if kind is list:
        if value and all(type(item) is int for item in value):
            return {"integers": {"items": value}}
        return {"list": {"items": [value_fields(item, depth + 1) for item in value]}}
    tag = next(iter(value), "")
    if tag in _TAGS:
        return {_TAGS[tag]: value[tag]}
    if tag == "$float":
        return {"real": float(value[tag])}
    if tag == "$complex":
        real, imaginary = (value_fields(part)["real"] for part in value[tag])
        return {"complex_number": {"real": real, "imaginary": imaginary}}
    if tag == "$branch":
        return {"branch": _branch_fields(value, depth)}
    return {"dict": {"items": [named(name, item, depth + 1) for name, item in value.items()]}}


def named(name: str, value: Any, depth: int = 0) -> Fields:
    """Return the fields of the message `Attribute`."""
    return {"name": name, "value": value_fields(value, depth)}


def _branch_fields(record: dict[str, Any], depth: int) -> Fields:
    return {
        "kind": record["$branch"].upper(),
        "items": [value_fields(item, depth + 1) for item in record["items"]],
        "keys": [value_fields(key, depth + 1) for key in record.get("keys", ())],
        "type_name": record.get("type", ""),
    }


def value_record(message: Any, path: str, depth: int = 0) -> Any:
    """Return the value of a message as in the document."""
    kind = message.WhichOneof("kind")
    if kind in _AS_THEY_ARE:
        return _real(message.real) if kind == "real" else getattr(message, kind)
    if kind in _TAG_OF:
        return {_TAG_OF[kind]: getattr(message, kind)}
    if kind is None:
        raise SerializationError("a value has no kind", path, rule="R4")
    if kind == "none":
        return None
    if kind == "integers":
        return list(message.integers.items)
    if kind == "complex_number":
        return {"$complex": [_real(message.complex_number.real), _real(message.complex_number.imaginary)]}
    if depth > MAX_NESTING:
        raise SerializationError(f"a value is nested deeper than {MAX_NESTING} levels", path, rule="R2")
    if kind == "list":
        return _items(message.list.items, path, depth)
    if kind == "branch":
        return _branch_record(message.branch, path, depth)
    return _dict_record(message.dict.items, path, depth)


def _real(number: float) -> Any:
    return number if math.isfinite(number) else {"$float": str(number)}


def _items(messages: Iterable[Any], path: str, depth: int) -> list[Any]:
    return [value_record(item, f"{path}[{index}]", depth + 1) for index, item in enumerate(messages)]


def _branch_record(message: Any, path: str, depth: int) -> dict[str, Any]:
    record: dict[str, Any] = {
        "$branch": kind_name(message),
        "items": _items(message.items, f"{path}.items", depth),
        "keys": _items(message.keys, f"{path}.keys", depth),
    }
    return {**record, "type": message.type_name} if message.type_name else record


def _dict_record(messages: Iterable[Any], path: str, depth: int) -> dict[str, Any]:
    found = table(((item.name, item.value) for item in messages), path)
    for name in found:
        if name.startswith("$"):  # it would be read as a tag of the document
            raise SerializationError(f"a dict cannot have the key {name!r:.60}", path, rule="R5")
    return {name: value_record(value, f"{path}.{name:.200}", depth + 1) for name, value in found.items()}


def table(pairs: Iterable[tuple[str, Any]], path: str) -> dict[str, Any]:
    """Build a dict from pairs; raise SerializationError for a duplicate name."""
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise SerializationError(f"duplicate {name!r:.60}", path, rule="R3")
        found[name] = value
    return found


def kind_name(message: Any) -> str:
    """Return the name of a message's `kind` as in the document; the number itself if it is unknown."""
    number = message.kind
    known = message.DESCRIPTOR.fields_by_name["kind"].enum_type.values_by_number
    return str(known[number].name).lower() if number in known else str(number)
