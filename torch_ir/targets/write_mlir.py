"""Write a graph as MLIR text in the torch dialect with external weights, as input for IREE and torch-mlir.

text = to_mlir(ir, "model.mlir")
"""

from __future__ import annotations

import os

from torch_ir.ir import IR
from torch_ir.ir.checks.work import bounded
from torch_ir.ir.files.atomic_write import write_text
from torch_ir.ir.graph.given_graph import require_graph
from torch_ir.ir.regroup.separate_stacks import without_stacks


@bounded
def to_mlir(ir: IR, path: str | os.PathLike[str] | None = None, *, functions: str = "blocks") -> str:
    """Return the text of a module whose function `main` takes the graph's inputs and returns its outputs in order.

    Each weight is a parameter `"model"::"its.state.dict.key"`; constants are in the text. After the outputs come the
    new values of changed tensors. Operators that the torch dialect lacks are decomposed with torch's rules; one
    ConversionError lists all that remain. With a path, the text is also written there.

    A function that the graph calls becomes a private function, with the weights of each call as arguments: repeated
    blocks, with `functions="all"` also fused operators, with `"none"` neither. Other calls are inlined.
    """
    require_graph(ir, "to_mlir")
    from torch_ir.safety.validate import validate_file
    from torch_ir.targets.mlir.mlir_module import write_module

    validate_file(ir)
    text = write_module(without_stacks(ir), functions)
    if path is not None:
        write_text(path, text)
    return text
