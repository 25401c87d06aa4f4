"""Read fields of JSON records; every error has the JSON path of the field."""

from __future__ import annotations

from collections.abc import Iterable, Set
from typing import Any, TypeVar, Union

from torch_ir.errors import SerializationError, suggestion
from torch_ir.ir.graph.attr_types import DTYPES

T = TypeVar("T")

# A dimension: a number, or an expression over the graph's symbols such as "2*seq + 1".
Dim = Union[int, str]

_WORDS = {
    str: "a string", int: "a whole number", float: "a number", list: "a list", dict: "an object", bool: "true or false"
}  # fmt: skip


def field(record: Any, key: str, kind: type[T], path: str) -> T:
    """Return the value of a required key."""
    if not isinstance(record, dict):
        raise SerializationError(f"expected an object, found {type(record).__name__}", path, rule="R4")
    value = record.get(key)
    if type(value) is kind:  # fast path: no path is formatted
        return value
    if key not in record:
        raise SerializationError(f"{key!r} is missing", path, rule="R4")
    return typed(value, kind, f"{path}.{key}")


def optional(record: dict[str, Any], key: str, kind: type[T], path: str) -> T | None:
    """Return the value of an optional key."""
    value = record.get(key)
    if value is None or type(value) is kind:
        return value
    return typed(value, kind, f"{path}.{key}")


def typed(value: Any, kind: type[T], path: str) -> T:
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise SerializationError(f"expected {_WORDS[kind]}, found {value!r:.60}", path, rule="R4")
    return value


def texts(record: dict[str, Any], key: str, path: str) -> list[str]:
    """Return the list of strings of an optional key."""
    found: list[Any] = optional(record, key, list, path) or []
    if not all(type(item) is str for item in found):
        return [typed(item, str, f"{path}.{key}[{index}]") for index, item in enumerate(found)]
    return found


def allow_keys(record: Any, known: Set[str], path: str) -> None:
    if not isinstance(record, dict):
        raise SerializationError(f"expected an object, found {type(record).__name__}", path, rule="R4")
    if not record.keys() <= known:
        key = next(key for key in record if key not in known)
        raise SerializationError(f"unknown key {key!r:.60}", path, rule="R4", hint=suggestion(str(key), known))


def check_header(document: dict[str, Any], form: str, version: int, known: Set[str], verb: str) -> None:
    """Raise SerializationError unless a document states this format and version, and has no unknown keys."""
    if document.get("format") != form:
        raise SerializationError(f"expected {form!r}, as torch-ir {verb} writes it", "$.format", rule="R4")
    allow_keys(document, known, "$")
    found = field(document, "version", int, "$")
    if found != version:
        raise SerializationError(f"version {found} is not supported, only {version}", "$.version", rule="R4")


def read_dims(dims: Iterable[Any], path: str) -> list[Dim]:
    """Read a shape or stride: non-negative numbers or expressions, which `check` parses."""
    found: list[Dim] = []
    for index, dim in enumerate(dims):
        if not isinstance(dim, str) and typed(dim, int, f"{path}[{index}]") < 0:
            raise SerializationError(f"a dimension cannot be {dim}", f"{path}[{index}]", rule="R4")
        found.append(dim)
    return found


def read_dtype(dtype: str, path: str) -> str:
    if dtype not in DTYPES:
        raise SerializationError(f"unknown dtype {dtype!r:.60}", path, rule="R5", hint=suggestion(dtype, DTYPES))
    return dtype
