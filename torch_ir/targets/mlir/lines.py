"""The lines of one function of an MLIR module; regions are nested."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from torch_ir.escaping import in_mlir
from torch_ir.ir.graph.free_names import FreeNames
from torch_ir.targets.mlir.syntax import value_name


class Typed(Protocol):
    """A value of the text: `%conv1` and its type."""

    @property
    def name(self) -> str: ...

    @property
    def type(self) -> str: ...


class Lines:
    """Writes lines; `place` is the name of the node that the lines come from."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.place = ""
        self._depth = 2
        self._names = FreeNames(set())

    def name(self, wanted: str) -> str:
        """Return a unique name for a value."""
        return f"%{self._names.free(value_name(wanted))}"

    def write(self, line: str) -> None:
        """Write a line, with the name of its node as location."""
        place = f" loc({in_mlir(self.place)})" if self.place else ""
        self.lines.append(f"{'  ' * self._depth}{line}{place}")

    def all_lines(self) -> list[str]:
        """Return all lines; a dialect puts its constants first."""
        return self.lines

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
            self.write(line)

    def call(self, symbol: str, operands: Sequence[Typed], results: Sequence[Typed]) -> None:
        """Write a call of a function of the module."""
        left = f"{names_of(results)} = " if results else ""
        self.write(f"{left}func.call {symbol}({names_of(operands)}) : ({types_of(operands)}) -> ({types_of(results)})")


def names_of(values: Sequence[Typed]) -> str:
    return ", ".join(value.name for value in values)


def types_of(values: Sequence[Typed]) -> str:
    return ", ".join(value.type for value in values)
