"""The lines of one function: constants, weights, operators; regions are nested."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch_ir.escaping import in_mlir
from torch_ir.ir.graph.free_names import FreeNames
from torch_ir.targets.mlir.numbers import BOOL, FLOAT, INT, Value
from torch_ir.targets.mlir.syntax import number, value_name

_NONE, _STR, _DEVICE = "!torch.none", "!torch.str", "!torch.Device"


class Text:
    """Writes lines; `place` is the name of the node that the lines come from."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.place = ""
        self._depth = 2
        self._names = FreeNames(set())
        self._constants: dict[tuple[str, str], tuple[Value, str]] = {}

    def name(self, wanted: str) -> str:
        """Return a unique name for a value."""
        return f"%{self._names.free(value_name(wanted))}"

    def say(self, line: str) -> None:
        place = f" loc({in_mlir(self.place)})" if self.place else ""
        self.lines.append(f"{'  ' * self._depth}{line}{place}")

    def open(self, line: str, inside: Sequence[str] = ()) -> None:
        """Begin a region."""
        self.lines += ["  " * self._depth + line, *("  " * self._depth + label for label in inside)]
        self._depth += 1

    def close(self, line: str) -> None:
        """End a region; a line that opens the next region has no location."""
        self._depth -= 1
        if line.endswith("{"):
            self.open(line)
        else:
            self.say(line)

    def operation(self, name: str, operands: Sequence[Value], results: Sequence[tuple[str, str]]) -> list[Value]:
        """Write an operator of the torch dialect; `results` are wanted names and types."""
        made = [Value(self.name(wanted), kind) for wanted, kind in results]
        left = f"{_names(made)} = " if made else ""
        right = f" -> {_types(made)}" if made else ""
        self.say(f"{left}{name} {_names(operands)} : {_types(operands)}{right}")
        return made

    def call(self, symbol: str, operands: Sequence[Value], results: Sequence[Value]) -> None:
        """Write a call of a function of the module."""
        left = f"{_names(results)} = " if results else ""
        self.say(f"{left}func.call {symbol}({_names(operands)}) : ({_types(operands)}) -> ({_types(results)})")

    def compute(self, name: str, operands: list[Value], kind: str) -> Value:
        """Write an operator with one result, named after it."""
        return self.operation(name, operands, [(name.split(".")[2].strip("_").lower(), kind)])[0]

    def list_of(self, items: Sequence[Value], element: str) -> Value:
        """Write a `torch.prim.ListConstruct`."""
        made = Value(self.name("list"), f"!torch.list<{element}>")
        self.say(f"{made.name} = torch.prim.ListConstruct {_names(items)} : ({_types(items)}) -> {made.type}")
        return made

    def constant(self, value: Any) -> Value:
        """Return the constant for None, a bool, a number or a string."""
        if value is None:
            return self._constant("none", "", _NONE, "none")
        if isinstance(value, str):
            return self._constant("str", in_mlir(value), _STR, "str")
        text = number(value)
        if isinstance(value, bool):
            return self._constant("bool", text, BOOL, text)
        kind, mlir = ("int", INT) if isinstance(value, int) else ("float", FLOAT)
        return self._constant(kind, text, mlir, f"{kind}{value!r}".replace("+", ""))

    def device(self, name: str) -> Value:
        return self._constant("device", in_mlir(name), _DEVICE, name)

    def _constant(self, kind: str, text: str, mlir: str, wanted: str) -> Value:
        if (kind, text) not in self._constants:
            value = Value(self.name(wanted), mlir)
            line = f"    {value.name} = torch.constant.{kind} {text}".rstrip()
            self._constants[kind, text] = (value, line)
        return self._constants[kind, text][0]

    def whole(self) -> list[str]:
        """Return all lines, constants before operators."""
        return [*(line for _, line in self._constants.values()), *self.lines]


def _names(values: Sequence[Value]) -> str:
    return ", ".join(value.name for value in values)


def _types(values: Sequence[Value]) -> str:
    return ", ".join(value.type for value in values)
