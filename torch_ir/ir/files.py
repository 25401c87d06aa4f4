"""The documented functions around files: serialise, deserialise, save, load, validate."""

from __future__ import annotations

import os

from torch_ir.errors import GraphError, SerializationError
from torch_ir.ir.document import Limits
from torch_ir.ir.graph import IR
from torch_ir.ir.side_file import INLINE_LIMIT


def serialize_ir(ir: IR) -> str:
    """The graph as JSON text."""
    return ir.to_json()


def deserialize_ir(text: str, limits: Limits = Limits()) -> IR:
    """The graph that JSON text holds."""
    return IR.from_json(text, limits)


def save_ir(ir: IR, path: str | os.PathLike[str], *, inline_limit: int | None = INLINE_LIMIT) -> None:
    """Write a graph to a file, making folders as needed; constants over `inline_limit` bytes go beside it."""
    ir.save(path, inline_limit=inline_limit)


def load_ir(path: str | os.PathLike[str], limits: Limits = Limits()) -> IR:
    """Read a graph from a file."""
    return IR.load(path, limits)


def validate_ir(ir: IR) -> bool:
    """True, or a SerializationError that names the first contradiction."""
    try:
        ir.check()
    except GraphError as error:
        raise SerializationError(str(error)) from error
    return True
