"""Write a graph as StableHLO text with weights as arguments, as input for XLA, IREE and other compilers.

module = to_stablehlo(ir, "model.stablehlo.mlir")
module.weights      # state-dict keys, in the order of the first arguments of `main`
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from torch_ir.ir import IR
from torch_ir.ir.checks.work import bounded
from torch_ir.ir.files.atomic_write import write_text
from torch_ir.ir.graph.given_graph import require_graph

if TYPE_CHECKING:
    from torch_ir.targets.stablehlo.stablehlo_module import StableHLO


@bounded
def to_stablehlo(ir: IR, path: str | os.PathLike[str] | None = None, *, functions: str = "blocks") -> StableHLO:
    """Return a module whose function `main` takes the weights, then the graph's inputs, and returns its outputs.

    Weights are in the order of `weights`, a list of state-dict keys; constants are in the text. After the outputs come
    the new values of changed tensors. Operators are decomposed with torch's rules to those that have a rule here; one
    UnsupportedOperatorsError lists all others. With a path, the text is also written there.

    A function that the graph calls becomes a private function, with the weights of each call as arguments: repeated
    blocks, with `functions="all"` also fused operators, with `"none"` neither. Other calls are inlined.
    """
    require_graph(ir, "to_stablehlo")
    from torch_ir.safety.validate import validate_file
    from torch_ir.targets.stablehlo.stablehlo_module import write_module

    validate_file(ir)
    module = write_module(ir, functions)
    if path is not None:
        write_text(path, module.text)
    return module
