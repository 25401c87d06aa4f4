"""The documented functions for writing graphs; those for reading are in `torch_ir.safety`."""

from __future__ import annotations

import os

from torch_ir.ir.files.side_file import INLINE_LIMIT
from torch_ir.ir.graph.given_graph import require_graph
from torch_ir.ir.graph.graph import IR


def serialize_ir(ir: IR) -> str:
    """Return the graph as JSON text."""
    require_graph(ir, "serialize_ir")
    return ir.to_json()


def save_ir(ir: IR, path: str | os.PathLike[str], *, inline_limit: int | None = INLINE_LIMIT) -> None:
    """Write a graph to a file, creating folders as needed; constants over `inline_limit` bytes go to a side file.

    A name that ends in `.gz` is compressed with gzip.
    """
    require_graph(ir, "save_ir")
    ir.save(path, inline_limit=inline_limit)
