"""Limits on what an untrusted file may contain."""

from __future__ import annotations

import sys
from dataclasses import dataclass, fields
from typing import Any

from torch_ir.errors import SerializationError


@dataclass(frozen=True)
class Limits:
    """Limits on what a file may contain (rule R2); pass your own to raise one.

    The defaults leave room for models of a trillion weights and graphs of a million nodes.
    """

    file_bytes: int = 1 << 30
    """Bytes of a file, and of its side file: checked before reading."""
    message_bytes: int = 1 << 28
    """Bytes of a protobuf message, which may take five times that in memory: counted before parsing."""
    values: int = 1 << 25
    """Values in the text of a file, counted before parsing; all that are parsed at once may take 24 bytes each."""
    blanks: int = 1 << 28
    """Whitespace characters of a text, also inside strings: counted before parsing."""
    depth: int = 100
    """Nesting of brackets: counted before parsing."""
    expanded_bytes: int = 1 << 27
    """Bytes of a gzip file after decompression: counted before any are kept."""
    nodes: int = 1 << 22
    """Nodes of the graph and all its functions: counted before any is created."""
    tensors: int = 1 << 20
    """Inputs and weights of the graph and all its functions: counted before any is created."""
    functions: int = 1 << 16
    """Functions, including nested ones."""
    rank: int = 128
    """Dimensions of one tensor."""
    elements: int = 1 << 58
    """Elements of one tensor, counting static dimensions, and of the storage that its strides span."""
    name_length: int = 1000
    """Characters of a name: of a node, tensor, operator, argument, weight, function or module path."""
    list_length: int = 1 << 20
    """Items of one list: inputs or outputs of a node, or an attribute."""
    expression_bytes: int = 1 << 20
    """Characters of all distinct expressions; a single one has at most 20,000."""
    derived_tensors: int = 1 << 16
    """Tensors that analyses of a file infer or decompose in one command, and 64 more for each node of the file."""
    analysis_seconds: float = 30.0
    """CPU seconds that analyses of a file take in one command, and 50 ms more for each node of the file."""
    memory_bytes: int | None = None
    """Peak memory of a run in bytes, computed from the declared sizes; None means the memory of the machine."""
    seconds: float = 600.0
    """Seconds that an isolated run may take."""


class Budget:
    """Steps or bytes that a search or analysis may still spend before it gives up."""

    def __init__(self, amount: int) -> None:
        self.left = amount

    def take(self, amount: int = 1) -> bool:
        """Spend an amount; return False if less was left."""
        self.left -= amount
        return self.left >= 0


def allow_more(name: str) -> str:
    """Return the hint of an error about a limit."""
    return f"Limits({name}=...) allows more"


# For graphs built by a program: only values beyond 64 bits are refused.
UNLIMITED = Limits(**{field.name: sys.maxsize for field in fields(Limits)})


class Counter:
    """Counts the contents of a file, over all its graphs."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._found: dict[str, int] = {}

    def add(self, name: str, count: int, path: str) -> None:
        """Add to the count of a limit; raise SerializationError if it exceeds the limit."""
        limit: Any = getattr(self._limits, name)
        self._found[name] = found = self._found.get(name, 0) + count
        if found > limit:
            raise SerializationError(f"{found} {name} are more than {limit}", path, rule="R2", hint=allow_more(name))
