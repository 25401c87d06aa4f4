"""Write a graph as an MLIR module: weights as globals, and one function."""

from __future__ import annotations

from collections.abc import Iterable

from torch_ir.errors import ConversionError
from torch_ir.ir import IR, OpNode
from torch_ir.ops.prepare_run import with_calls_inline
from torch_ir.targets.mlir.syntax import symbol
from torch_ir.targets.mlir.torch_dialect import ENTRY, Writer


def write_module(ir: IR) -> str:
    """Return the text of a module whose function `main` computes the graph."""
    ir = with_calls_inline(ir)
    writer = Writer(ir)
    for tensor in ir.params:
        writer.load(tensor)
    for tensor in ir.graph_inputs:
        writer.bind(tensor)
    writer.nodes(ir.nodes)
    results = [writer.tensor(result) for result in ir.returns.inputs]
    if writer.missing:
        raise ConversionError(refusal("the torch dialect of MLIR", writer.missing))
    given = ", ".join(f"{writer.values[t.name].name}: {writer.values[t.name].type}" for t in ir.graph_inputs)
    types = ", ".join(result.type for result in results)
    returned = f"return {', '.join(result.name for result in results)} : {types}" if results else "return"
    lines = [
        f"module {symbol(ir.model_name or 'graph')} {{",
        *writer.globals,
        f"  func.func @{ENTRY}({given}) -> ({types}) attributes {{torch.assume_strict_symbolic_shapes}} {{",
        *writer.text.whole(),
        f"    {returned}",
        "  }",
        "}",
        "",
    ]
    return "\n".join(lines)


def refusal(who: str, missing: Iterable[OpNode]) -> str:
    """Return an error message with a line for each unsupported node."""
    lines = [f"  {node.op_type}  ({node.name})  {_shapes(node)}" for node in missing]
    return "\n".join([f"{who} does not support {len(lines)} of the graph's operators:", *lines])


def _shapes(node: OpNode) -> str:
    sides = ([f"{t.dtype}[{', '.join(map(str, t.shape))}]" for t in side] for side in (node.inputs, node.outputs))
    return " -> ".join(" ".join(side) for side in sides)
