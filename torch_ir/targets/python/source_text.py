"""Pieces of Python source: names, values, expressions and comments, escaped so that no text of a graph becomes code."""

from __future__ import annotations

import keyword
import math
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch_ir.errors import ConversionError
from torch_ir.ir import Device, Dtype, Layout, MemoryFormat
from torch_ir.ir.graph.free_names import fresh
from torch_ir.ir.sizes.expressions import SIGNS, translate

WIDTH = 110
# names that generated functions use, so that no value of a graph may have them
RESERVED = frozenset(
    ["_", "self", "torch", "aten", "math", "float", "complex", "getattr", "min", "max", "abs", "bool", "round"]
)
_NAME = re.compile(r"[A-Za-z_][A-Za-z_0-9]*")
_FUNCTIONS = {
    **{name: name for name in ("min", "max", "abs", "bool", "round")},
    "int": "torch.sym_int",
    "float": "torch.sym_float",
}
_BOTH_SIDES: dict[Callable[..., Any], str] = {operator.and_: "and", operator.or_: "or"}


def is_plain_name(text: Any) -> bool:
    """Whether a text can be used as a name in source."""
    return isinstance(text, str) and _NAME.fullmatch(text) is not None and not keyword.iskeyword(text)


def free_name(wanted: str, taken: set[str]) -> str:
    """Return a free name like the wanted one, and mark it as taken."""
    word = re.sub(r"\W+", "_", wanted, flags=re.ASCII).strip("_") or "value"
    return fresh(word if is_plain_name(word) else f"{word}_" if word[0].isalpha() else f"n{word}", taken)


def attribute(holder: str, name: str) -> str:
    """Return the access to an attribute; names with `__` use getattr, as classes mangle them."""
    return f"{holder}.{name}" if is_plain_name(name) and not name.startswith("__") else f"getattr({holder}, {name!r})"


def place(key: str) -> str:
    """Return the access to a state-dict key: `self.layers[0].weight`."""
    text = "self"
    for step in key.split("."):
        if is_plain_name(step) and not step.startswith("__"):
            text += f".{step}"
        else:
            is_number = step.isdecimal() and str(int(step)) == step
            text += f"[{step if is_number else repr(step)}]"
    return text


class Code(str):
    """A string that is source code."""

    __slots__ = ()


def literal(value: Any) -> str:
    """Return a value as Python source."""
    if isinstance(value, Code):
        return str(value)
    if isinstance(value, (list, tuple)):
        items = ", ".join(map(literal, value))
        return f"[{items}]" if isinstance(value, list) else f"({items}{',' * (len(value) == 1)})"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{literal(key)}: {literal(item)}" for key, item in value.items()) + "}"
    if isinstance(value, (Dtype, Layout, MemoryFormat)):
        return attribute("torch", str(value))
    if isinstance(value, Device):
        return f"torch.device({str(value)!r})"
    if isinstance(value, float) and not math.isfinite(value):
        return f'float("{value}")'
    if isinstance(value, complex):
        return f"complex({literal(value.real)}, {literal(value.imag)})"
    if value is None or type(value) in (bool, int, float, str, bytes):
        return repr(value)
    raise ConversionError(f"{value!r:.80} of type {type(value).__name__} cannot be written in Python")


def call(function: str, arguments: Sequence[str], indent: str, left: str = "", right: str = "") -> list[str]:
    """Return a call in one line, or with a line per argument if it is too long."""
    start = f"{indent}{left} = {function}(" if left else f"{indent}{function}("
    line = f"{start}{', '.join(arguments)})"
    if len(line) <= WIDTH or not arguments:
        return [f"{line}  {right}".rstrip()]
    return [start, *(f"{indent}    {argument}," for argument in arguments), f"{indent})  {right}".rstrip()]


# -- numbers ----------------------------------------------------------------------------------------------------------


def expression(text: str | int, sizes: Mapping[str, str]) -> str:
    """Return a dimension expression as Python source; `sizes` maps symbols to source."""
    return _part(translate(text, {name: (size, True) for name, size in sizes.items()}, _operation))[0]


def solution(shown: int | str, name: str, size: str, sizes: Mapping[str, str]) -> str:
    """Return the source for the value of a symbol that makes a linear expression of it equal to a size."""
    if shown == name:
        return size
    zero, one = (expression(shown, {**sizes, name: number}) for number in ("0", "1"))
    return f"({size} - ({zero})) // (({one}) - ({zero}))"


def _part(value: Any) -> tuple[str, bool]:
    """Return the text of an operand, and whether it needs no brackets."""
    return value if isinstance(value, tuple) else (literal(value), True)


def _operation(function: Callable[..., Any], values: list[Any]) -> tuple[str, bool]:
    operands = list(map(_part, values))
    texts = [text for text, _ in operands]
    sign = _BOTH_SIDES.get(function) or SIGNS[function]
    if sign == "where":
        return f"({_operand(operands[1])} if {_operand(operands[0])} else {_operand(operands[2])})", True
    if sign in ("min", "max") and len(texts) == 2:
        return f"torch.sym_{sign}({', '.join(texts)})", True
    if sign.isalpha() and sign not in ("not", "and", "or"):
        return f"{_FUNCTIONS.get(sign, f'math.{sign}')}({', '.join(texts)})", True
    if len(operands) == 1:
        return f"{sign} {_operand(operands[0])}" if sign == "not" else f"{sign}{_operand(operands[0])}", False
    return f"{_operand(operands[0])} {sign} {_operand(operands[1])}", False


def _operand(written: tuple[str, bool]) -> str:
    text, is_whole = written
    return text if is_whole else f"({text})"
