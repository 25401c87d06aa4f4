"""The text form: one line per node, the same text for the same graph.

graph SimpleMLP(x: float32[1, 4]) {
  param p_fc1_weight: float32[8, 4] = "fc1.weight"
  linear: float32[1, 8] = aten.linear.default(input=x, weight=p_fc1_weight, bias=None)
  return linear
}
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from torch_ir.errors import printable
from torch_ir.ir.attr_order import ordered
from torch_ir.ir.node import OpNode
from torch_ir.ir.records import Dim
from torch_ir.ir.structure import Branch, Slot, Tree, flat
from torch_ir.ir.tensor import TensorMeta
from torch_ir.ir.values import Expr, FunctionRef

if TYPE_CHECKING:
    from torch_ir.ir.graph import IR


def print_graph(ir: IR) -> str:
    """The whole graph, functions first; a function of a function is called `outer.inner`."""
    return "\n".join([*_print_functions(ir, ""), _print_one(ir, f"graph {ir.model_name}".rstrip())])


def _print_functions(ir: IR, outer: str) -> Iterator[str]:
    for name, body in ir.functions.items():
        yield from _print_functions(body, f"{outer}{name}.")
        yield _print_one(body, f"function {outer}{name}")


def print_node(node: OpNode) -> str:
    """One node: what it makes, from which operator and arguments."""
    inputs = zip(node.args, (tensor.name for tensor in node.inputs), strict=False)  # a node may have let go of them
    named = {**dict(inputs), **{name: print_value(value) for name, value in ordered(node.op_type, node.attrs).items()}}
    call = f"{node.op_type}({', '.join(f'{name}={text}' for name, text in named.items())})"
    return f"{', '.join(map(_typed, node.outputs))} = {call}" if node.outputs else call


def print_value(value: Any) -> str:
    """An attribute: typed names bare, strings quoted."""
    if isinstance(value, FunctionRef):
        return f"@{value}"
    if isinstance(value, Expr):
        return f"{{{value}}}"
    if isinstance(value, str):
        return str(value) if type(value) is not str else repr(value)
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(print_value, value))}]"
    return repr(value)


def shape_text(tensor: TensorMeta) -> str:
    """`1x3x224x224`, or `scalar`; where one of them is a name, a sign of its own is between them, as x is a letter."""
    return ("x" if tensor.is_static else "\N{MULTIPLICATION SIGN}").join(map(_dim_text, tensor.shape)) or "scalar"


def _dim_text(dim: Dim) -> str:
    return str(dim) if isinstance(dim, int) or re.fullmatch(r"\w+", dim) else f"({dim})"


def _print_one(ir: IR, title: str) -> str:
    lines = [f"{title}({', '.join(map(_typed, ir.graph_inputs))}) {{"]
    lines += [f"  mesh {axis} = {size}" for axis, size in ir.mesh.items()]
    for symbol in ir.symbols.values():
        place = "" if symbol.tensor is None else f" from {symbol.tensor.name}"
        lines.append(f"  symbol {symbol.range}{place}{'' if symbol.dim is None else f'[{symbol.dim}]'}")
    lines += [f"  require {text}" for text in ir.constraints]
    lines += [f"  {_print_param(tensor)}" for tensor in ir.params]
    for body in ir.functions:
        lines.append(f"  uses @{body}")
    lines += [f"  {print_node(node)}" for node in ir.nodes]
    lines += [f"  {target.name} := {value.name}" for target, value in ir.mutations]
    lines.append(f"  return {_print_outputs(ir)}".rstrip())
    return "\n".join([*lines, "}"]) + "\n"


def _print_param(tensor: TensorMeta) -> str:
    param = tensor.param
    if param is None:  # `check` refuses it, but whoever looks for the mistake wants to see it
        return f"param {_typed(tensor)}"
    keys = " = ".join(json.dumps(key, ensure_ascii=False) for key in param.keys)
    kind = "param" if param.kind == "parameter" else param.kind
    return f"{kind} {_typed(tensor)} = {keys}"


def _print_outputs(ir: IR) -> str:
    names = [tensor.name for tensor in ir.graph_outputs]
    if ir.output_tree == flat(len(names)):
        return ", ".join(names)
    return _print_tree(ir.output_tree, names)


def _print_tree(tree: Tree, names: list[str]) -> str:
    if isinstance(tree, Slot):
        return names[tree]
    if not isinstance(tree, Branch):
        return print_value(tree)
    items = [_print_tree(item, names) for item in tree.items]
    if tree.keys:
        items = [f"{printable(str(key))}: {item}" for key, item in zip(tree.keys, items, strict=True)]
    marks = {"tuple": "()", "list": "[]", "dict": "{}", "object": "()"}[tree.kind]
    return f"{printable(tree.type_name.rpartition('.')[2])}{marks[0]}{', '.join(items)}{marks[1]}"


def _typed(tensor: TensorMeta) -> str:
    placed = "" if tensor.placement is None else f" on {', '.join(tensor.placement)}"
    return f"{tensor.name}: {tensor.dtype}[{', '.join(map(str, tensor.shape))}]{placed}"
