"""Write a graph as an MLIR module: weights as globals, a private function for each function, and `main`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from torch_ir.errors import ConversionError
from torch_ir.ir import IR, OpNode
from torch_ir.ir.graph.free_names import FreeNames
from torch_ir.targets.mlir.graph_writer import ENTRY, Function
from torch_ir.targets.mlir.syntax import symbol
from torch_ir.targets.mlir.torch_dialect import Writer
from torch_ir.targets.standalone_functions import ConvertedFunctions, with_functions
from torch_ir.targets.unchecked_guards import with_size_assertions, without_guards


def write_module(ir: IR, functions: str) -> str:
    """Return the text of a module whose function `main` computes the graph."""
    ir = with_functions(without_guards(with_size_assertions(ir), "MLIR"), functions)
    symbols = FreeNames({ENTRY})
    missing: list[OpNode] = []

    def convert(body: IR, name: str, op_type: str, called: Mapping[str, Function]) -> Function:
        writer = Writer(body, symbols, called)
        function = writer.private_function(name)
        missing.extend(each.node for each in writer.missing)
        return function

    made = ConvertedFunctions(convert, symbols.taken)
    writer = Writer(ir, symbols, made.called_by(ir))
    arguments = [(tensor, "") for tensor in ir.graph_inputs]
    lines = writer.function(f"@{ENTRY}", arguments, ir.params, " attributes {torch.assume_strict_symbolic_shapes}")
    if missing := [*missing, *(each.node for each in writer.missing)]:
        raise ConversionError(refusal("the torch dialect of MLIR", missing))
    bodies = [line for function in made for line in function.lines]
    return "\n".join([f"module {symbol(ir.model_name or 'graph')} {{", *writer.globals, *bodies, *lines, "}", ""])


def refusal(who: str, missing: Iterable[OpNode]) -> str:
    """Return an error message with a line for each unsupported node."""
    lines = [f"  {node.op_type}  ({node.name})  {_shapes(node)}" for node in missing]
    return "\n".join([f"{who} does not support {len(lines)} of the graph's operators:", *lines])


def _shapes(node: OpNode) -> str:
    sides = ([f"{t.dtype}[{', '.join(map(str, t.shape))}]" for t in side] for side in (node.inputs, node.outputs))
    return " -> ".join(" ".join(side) for side in sides)
