"""Parser of values, sizes and structures of the text form."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from torch_ir.errors import GraphError, suggestion
from torch_ir.ir.graph.attr_types import (
    DTYPES,
    LAYOUTS,
    MEMORY_FORMATS,
    Device,
    Dtype,
    FunctionRef,
    Layout,
    MemoryFormat,
    is_device,
)
from torch_ir.ir.graph.io_tree import Branch, Tree
from torch_ir.ir.json.json_fields import Dim
from torch_ir.ir.json.json_values import MAX_DIGITS, MAX_NESTING
from torch_ir.ir.sizes.expressions import Expr
from torch_ir.ir.text.bare_words import PART, RESERVED, WORD
from torch_ir.ir.text.line_cursor import Cursor

_REAL = r"(?:[0-9]+(?:\.[0-9]*)?(?:[eE][-+]?[0-9]+)?|inf|nan)"
_COMPLEX = re.compile(rf"\([-+]?{_REAL}[-+]{_REAL}j\)|[-+]?{_REAL}j(?!\w)")
_NUMBER = re.compile(rf"-?{_REAL}(?!\w)")
_EXPRESSION = re.compile(r"\{([^{}:'\"`@\[\]]+)\}")
_DEVICE = re.compile(r"\w+:[0-9]+")
_KIND = re.compile(r"(?:tuple|object) +(?=['\"(]|[^\W\d])")
_TYPED = re.compile(rf"{WORD.pattern}(?=[(\[{{])")
_FIELD = re.compile(rf"{PART.pattern}(?= *(?:=|:))")
_STATIC = re.compile(r"\[([0-9, ]*)\]")
_CONSTANTS = {"None": None, "True": True, "False": False}
_CLOSING = {"(": ")", "[": "]", "{": "}"}
Leaf = Callable[[Cursor, str, int], Tree]  # converts a tensor's name at a position to a leaf of the structure


def read_value(cursor: Cursor, depth: int = 0) -> Any:
    """Read an attribute: a plain value, a typed name, a size, or a list or dict of these."""
    if depth > MAX_NESTING:
        raise cursor.error(f"a value is nested deeper than {MAX_NESTING} levels", rule="R2")
    if cursor.is_next("'", '"'):
        return cursor.string()
    if cursor.take("["):
        return [read_value(cursor, depth + 1) for _ in cursor.items("]")]
    if cursor.is_next("{"):
        return _read_dict(cursor, depth) if (found := read_expression(cursor)) is None else found
    if cursor.take("@"):
        return FunctionRef(cursor.name(PART, "the name of a function"))
    start = cursor.at
    if text := cursor.match(_COMPLEX):
        return complex(text)
    if text := cursor.match(_NUMBER):
        digits = text.removeprefix("-")
        return cursor.whole(text, start) if digits.isdecimal() else _read_float(cursor, text, start)
    return _read_word(cursor)


def _read_float(cursor: Cursor, text: str, start: int) -> float:
    number = float(text)
    if number in (float("inf"), float("-inf")) and not text.endswith("inf"):
        raise cursor.error(f"{text:.40} is too large for a float", start, rule="R3")
    return number


def _read_dict(cursor: Cursor, depth: int) -> dict[str, Any]:
    cursor.expect("{")
    found: dict[str, Any] = {}
    for _ in cursor.items("}"):
        start, key = cursor.at, cursor.string()
        if key in found or key.startswith("$"):
            problem = f"duplicate key {key!r:.60}" if key in found else f"the key {key!r:.60} begins with '$'"
            raise cursor.error(problem, start, rule="R3")
        cursor.expect(":")
        found[key] = read_value(cursor, depth + 1)
    return found


def read_expression(cursor: Cursor) -> Expr | None:
    """Read a size in braces such as `{2*batch}`, if one comes next."""
    text = cursor.match(_EXPRESSION)
    return None if text is None else Expr(text[1:-1])


def _read_word(cursor: Cursor) -> Any:
    if (device := _DEVICE.match(cursor.line, cursor.at)) and is_device(device.group()):
        cursor.match(_DEVICE)
        return Device(device.group())
    start, word = cursor.at, cursor.match(WORD)
    if word is None:
        raise cursor.expected("a value")
    if word in _CONSTANTS:
        return _CONSTANTS[word]
    if word in DTYPES:
        return Dtype(word)
    if is_device(word):
        return Device(word)
    if word in LAYOUTS:
        return Layout(word)
    if word in MEMORY_FORMATS:
        return MemoryFormat(word)
    raise cursor.error(f"unknown word {word!r:.60}", start, rule="R5", hint=suggestion(word, RESERVED))


def at_tensor(cursor: Cursor) -> bool:
    """Whether a tensor name comes next rather than a value."""
    if cursor.is_next("`"):
        return True
    found = WORD.match(cursor.line, cursor.at)
    return found is not None and found.group() not in RESERVED


# -- sizes ------------------------------------------------------------------------------------------------------------


def read_dims(cursor: Cursor) -> list[Dim]:
    """Read sizes in brackets: non-negative numbers, and expressions, which `check` parses."""
    if (found := _STATIC.match(cursor.line, cursor.at)) is not None:  # the common case
        numbers = found[1].split(", ") if found[1] else []
        if all(dim.isdecimal() and len(dim) <= MAX_DIGITS for dim in numbers):
            cursor.match(_STATIC)
            return [int(dim) for dim in numbers]
    cursor.expect("[")
    return [_read_dim(cursor) for _ in cursor.items("]")]


def _read_dim(cursor: Cursor) -> Dim:
    start = cursor.at
    if cursor.is_next('"'):
        return cursor.string()
    at, depth, line = start, 0, cursor.line
    while at < len(line):
        sign = line[at]
        if sign in "[]" or (sign in "," and not depth):
            break
        depth += (sign == "(") - (sign == ")")
        at += 1
    cursor.at = at
    text = line[start:at].strip(" ")
    if not text:
        raise cursor.expected("a size")
    if not (text.isascii() and text.isdecimal()):
        if text.startswith("-") and text[1:].isdecimal():
            raise cursor.error(f"a dimension cannot be {text:.40}", start, rule="R4")
        return text
    return cursor.whole(text, start)


# -- structures -------------------------------------------------------------------------------------------------------


def read_tree(cursor: Cursor, leaf: Leaf, depth: int = 0) -> Tree:
    """Read containers whose leaves are tensors and values; after an equals sign, lists and dicts are values, too."""
    if depth > MAX_NESTING:
        raise cursor.error(f"a structure is nested deeper than {MAX_NESTING} levels", rule="R2")
    if cursor.take("="):
        return read_value(cursor, depth + 1)
    start = cursor.at
    kind = (cursor.match(_KIND) or "").strip()
    name = cursor.match(_TYPED)
    if name is None and cursor.is_next("'", '"'):
        name = cursor.string()
        if not cursor.is_next(*_CLOSING):
            return name
    if name is None and not kind:
        if at_tensor(cursor):
            return leaf(cursor, cursor.name(WORD, "a tensor"), start)
        if not cursor.is_next(*_CLOSING) or _COMPLEX.match(cursor.line, cursor.at):
            return read_value(cursor, depth)
        if (size := read_expression(cursor)) is not None:
            return size
    return _read_branch(cursor, leaf, kind, name or "", depth)


def _read_branch(cursor: Cursor, leaf: Leaf, kind: str, name: str, depth: int) -> Tree:
    start = cursor.at
    opening = next((bracket for bracket in ("([{" if not kind else "(") if cursor.take(bracket)), "")
    if not opening:
        raise cursor.expected("'('")
    closing = _CLOSING[opening]
    items: list[Tree] = []
    keys: list[Any] = []
    sign, is_one = "", False
    for _ in cursor.items(closing):
        found = _read_field(cursor, opening, depth + 2)
        if items and (found is None) == bool(keys):
            raise cursor.error("some items of a container have keys and some have none")
        if found is not None:
            keys.append(found[0])
            sign = sign or found[1]
            if found[1] != sign:
                raise cursor.error(f"expected {sign!r} after every key of a container, found {found[1]!r}")
        items.append(read_tree(cursor, leaf, depth + 2))
        is_one = len(items) == 1 and not cursor.is_next(",")
    if opening == "(" and is_one and not (kind or name or keys):
        return items[0]
    if not kind:
        kind = {"[": "list", "{": "dict"}.get(opening) or _kind_of(sign, name)
    if len(set(keys)) != len(keys):
        raise cursor.error("duplicate key", start, rule="R8")
    try:
        return Branch(kind, tuple(items), tuple(keys), name)
    except GraphError as error:
        raise cursor.error(str(error), start, rule=error.rule) from None


def _kind_of(sign: str, name: str) -> str:
    """Return the kind of a container in parentheses."""
    return "tuple" if sign == "=" else "object" if sign == ":" or name else "tuple"


def _read_field(cursor: Cursor, opening: str, depth: int) -> tuple[Any, str] | None:
    """Read the key of an item and the sign after it; in parentheses, a key that is not a plain name follows a dot."""
    if opening == "[":
        return None
    if opening == "(" and not cursor.is_next("."):
        found = _FIELD.match(cursor.line, cursor.at)
        if found is None or found.group() in RESERVED:
            return None
    if opening == "(":
        cursor.take(".")
    key = _read_key(cursor, depth)
    for sign in (":",) if opening == "{" else (":", "="):
        if cursor.take(sign):
            return key, sign
    raise cursor.expected("':'" if opening == "{" else "'=' or ':'")


def _read_key(cursor: Cursor, depth: int) -> Any:
    """Read a key: a plain value, or a tuple of them; a bare word is a string."""
    found = PART.match(cursor.line, cursor.at)
    if found is not None and found.group() not in RESERVED:
        return cursor.match(PART)
    return _read_key_value(cursor, depth)


def _read_key_value(cursor: Cursor, depth: int) -> Any:
    if depth > MAX_NESTING:
        raise cursor.error(f"a key is nested deeper than {MAX_NESTING} levels", rule="R2")
    if not cursor.is_next("(") or _COMPLEX.match(cursor.line, cursor.at):
        start, value = cursor.at, read_value(cursor, depth)
        if isinstance(value, (list, dict)):
            raise cursor.error("a key must be a plain value", start, rule="R4")
        return value
    cursor.expect("(")
    return tuple([_read_key_value(cursor, depth + 1) for _ in cursor.items(")")])
