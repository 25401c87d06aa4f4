"""The lines of one function in the torch dialect: constants, weights, operators."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch_ir.escaping import in_mlir
from torch_ir.targets.mlir.lines import Lines, names_of, types_of
from torch_ir.targets.mlir.numbers import BOOL, FLOAT, INT, Value
from torch_ir.targets.mlir.syntax import number

_NONE, _STR, _DEVICE = "!torch.none", "!torch.str", "!torch.Device"


class Text(Lines):
    """Writes lines of the torch dialect; constants come first."""

    def __init__(self) -> None:
        super().__init__()
        self._constants: dict[tuple[str, str], tuple[Value, str]] = {}

    def operation(self, name: str, operands: Sequence[Value], results: Sequence[tuple[str, str]]) -> list[Value]:
        """Write an operator of the torch dialect; `results` are wanted names and types."""
        made = [Value(self.name(wanted), kind) for wanted, kind in results]
        left = f"{names_of(made)} = " if made else ""
        right = f" -> {types_of(made)}" if made else ""
        self.write(f"{left}{name} {names_of(operands)} : {types_of(operands)}{right}")
        return made

    def compute(self, name: str, operands: list[Value], kind: str) -> Value:
        """Write an operator with one result, named after it."""
        return self.operation(name, operands, [(name.split(".")[2].strip("_").lower(), kind)])[0]

    def list_of(self, items: Sequence[Value], element: str) -> Value:
        """Write a `torch.prim.ListConstruct`."""
        made = Value(self.name("list"), f"!torch.list<{element}>")
        self.write(f"{made.name} = torch.prim.ListConstruct {names_of(items)} : ({types_of(items)}) -> {made.type}")
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

    def all_lines(self) -> list[str]:
        return [*(line for _, line in self._constants.values()), *self.lines]
