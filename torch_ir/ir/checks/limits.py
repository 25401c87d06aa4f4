"""How much a file may ask for before it is refused."""

from __future__ import annotations

import sys
from dataclasses import dataclass, fields
from typing import Any

from torch_ir.errors import SerializationError


@dataclass(frozen=True)
class Limits:
    """How much a file may ask for before it is refused (rule R2); raise a limit by passing your own.

    The defaults leave room for models of a trillion weights and graphs of a million nodes.
    """

    file_bytes: int = 1 << 30
    """Bytes of a file, and of its side file: looked at before reading."""
    message_bytes: int = 1 << 28
    """Bytes of a protobuf message, which may take a hundred times that in memory."""
    values: int = 1 << 25
    """Values in the text of a file: counted before parsing. Each takes up to 200 bytes of memory."""
    blanks: int = 1 << 28
    """Blanks of a text outside and inside strings: counted before parsing."""
    depth: int = 100
    """Brackets within brackets: counted before parsing."""
    expanded_bytes: int = 1 << 27
    """Bytes of text that a gzip file holds, of which a few may stand for many: counted before any is kept."""
    nodes: int = 1 << 22
    """Nodes of the graph and all its functions: counted before any is made."""
    tensors: int = 1 << 20
    """Inputs and weights of the graph and all its functions: counted before any is made."""
    functions: int = 1 << 16
    """Functions, and functions of functions."""
    rank: int = 128
    """Dimensions of one tensor."""
    elements: int = 1 << 58
    """Elements of one tensor, as far as its dimensions are numbers, and of the storage that its strides span."""
    name_length: int = 1000
    """Characters of a name: of a node, tensor, operator, argument, weight or function."""
    list_length: int = 1 << 20
    """Items of one list: inputs or outputs of a node, or an attribute."""
    expression_bytes: int = 1 << 20
    """Characters of all expressions that differ; one alone has at most 20,000."""
    memory_bytes: int | None = None
    """Bytes of memory that a run may need at its peak, by the sizes that are declared; None is what the machine has."""
    seconds: float = 600.0
    """Seconds that an isolated run may take."""


class Budget:
    """Steps or bytes that a search or an analysis may still spend; it gives up when they are spent."""

    def __init__(self, amount: int) -> None:
        self.left = amount

    def take(self, amount: int = 1) -> bool:
        """Spend an amount; False where less was left."""
        self.left -= amount
        return self.left >= 0


def allow_more(name: str) -> str:
    """The hint of an error about a limit."""
    return f"Limits({name}=...) allows more"


# For graphs that a program made: what counts in 64 bits is all right.
UNLIMITED = Limits(**{field.name: sys.maxsize for field in fields(Limits)})


class Counter:
    """Counts what a file brings, in all its graphs together."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._found: dict[str, int] = {}

    def add(self, name: str, count: int, path: str) -> None:
        """So many more of what a limit is named after."""
        limit: Any = getattr(self._limits, name)
        self._found[name] = found = self._found.get(name, 0) + count
        if found > limit:
            raise SerializationError(f"{found} {name} are more than {limit}", path, rule="R2", hint=allow_more(name))
