"""A graph as MLIR text of the torch dialect, with its weights outside: what IREE and torch-mlir's passes take.

text = to_mlir(ir, "model.mlir")
"""

from __future__ import annotations

import os

from torch_ir.ir import IR
from torch_ir.ir.files.atomic_write import write_text


def to_mlir(ir: IR, path: str | os.PathLike[str] | None = None) -> str:
    """The text of a module whose function `main` takes the graph's inputs and gives its outputs in order.

    Each weight is a parameter `"model"::"its.state.dict.key"`; constants that the graph holds are in the text. After
    the outputs come the new values of what the graph changes. Operators that the torch dialect lacks are taken apart as
    torch does; one ConversionError lists all that are left. With a path, the text is also written there.
    """
    from torch_ir.targets.mlir.mlir_module import write_module

    text = write_module(ir)
    if path is not None:
        write_text(path, text)
    return text
