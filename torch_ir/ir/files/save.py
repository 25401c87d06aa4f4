"""The documented functions that write: serialise and save; those that read are in `torch_ir.safety`."""

from __future__ import annotations

import os

from torch_ir.ir.files.side_file import INLINE_LIMIT
from torch_ir.ir.graph.graph import IR


def serialize_ir(ir: IR) -> str:
    """The graph as JSON text."""
    return ir.to_json()


def save_ir(ir: IR, path: str | os.PathLike[str], *, inline_limit: int | None = INLINE_LIMIT) -> None:
    """Write a graph to a file, making folders as needed; constants over `inline_limit` bytes go beside it.

    A name that ends in `.gz` is compressed with gzip.
    """
    ir.save(path, inline_limit=inline_limit)
