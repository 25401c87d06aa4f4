"""The documented functions around files: serialise, deserialise, save, load, validate."""

from __future__ import annotations

import os

from torch_ir.errors import GraphError, SerializationError
from torch_ir.ir.document import Limits
from torch_ir.ir.graph import IR


def serialize_ir(ir: IR) -> str:
    """The graph as JSON text."""
    return ir.to_json()


def deserialize_ir(text: str, limits: Limits = Limits()) -> IR:
    """The graph that JSON text holds."""
    return IR.from_json(text, limits)


def save_ir(ir: IR, path: str | os.PathLike[str]) -> None:
    """Write a graph to a file, making folders as needed."""
    ir.save(path)


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
