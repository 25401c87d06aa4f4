"""A target whose IR is text: write the graph of a model as a Python file of plain PyTorch.

python examples/torch_code_target.py [a model of the catalogue]
"""

import itertools
import keyword
import math
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

import torch_ir
from torch_ir import IR, OpNode, Target, TensorMeta
from torch_ir.ir import Branch, Device, Dtype, Expr, Layout, MemoryFormat, Slot, Tree, leaves
from torch_ir.ops import arguments, find_operator

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # for the catalogue

import catalogue

INDENT = " " * 8
PLACE = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*|\[\d+\]|\['\w+'\])*")  # no other text of a graph becomes code
HEADER = '''\
"""{name} as plain PyTorch, written from its graph."""

import torch
import torch.nn.functional as F
from torch import nn


class Part(nn.Module):
    """Module for one prefix of state-dict keys."""

    def __getitem__(self, name):
        return getattr(self, str(name))

    def declare(self, tensor, *keys, persistent=True):
        for key in keys:
            *path, name = key.split(".")
            part = self
            for step in path:
                part = part._modules.setdefault(step, Part())
            if isinstance(tensor, nn.Parameter):
                part.register_parameter(name, tensor)
            else:
                part.register_buffer(name, tensor, persistent)


class {name}(Part):
    def __init__(self):
        super().__init__()
'''

code = Target("torch code")
FUNCTIONS = {
    **{f"aten.{name}": f"F.{name}" for name in (
        "linear", "conv1d", "conv2d", "conv3d", "relu", "gelu", "silu", "layer_norm", "group_norm", "max_pool2d",
        "avg_pool2d", "adaptive_avg_pool2d", "scaled_dot_product_attention", "pad")},
    **{f"aten.{name}": f"torch.{name}" for name in (
        "softmax", "sigmoid", "tanh", "exp", "sqrt", "rsqrt", "bmm", "cat", "stack", "embedding")},
}  # fmt: skip
METHODS = (
    "view", "reshape", "permute", "transpose", "unsqueeze", "squeeze", "expand", "flatten", "unflatten", "contiguous",
    "chunk", "mean", "sum", "select", "masked_fill", "pow",
)  # fmt: skip
OPERATORS = {"aten.add": "+", "aten.sub": "-", "aten.mul": "*", "aten.div": "/", "aten.matmul": "@"}


@code.lowers(*FUNCTIONS)
def function(node: OpNode) -> str:
    told = (argument for argument in call(node) if not argument.startswith("cudnn"))
    return f"{FUNCTIONS[node.op_type.rpartition('.')[0]]}({', '.join(told)})"


@code.lowers("aten.batch_norm.default")
def batch_norm(node: OpNode) -> str:
    places = ("input", "running_mean", "running_var", "weight", "bias", "training", "momentum", "eps")
    return f"F.batch_norm({', '.join(text(node[name]) for name in places)})"


@code.lowers(*(f"aten.{name}" for name in METHODS))
def method(node: OpNode) -> str:
    first, *rest = call(node, in_order=True)
    return f"{first}.{node.op_type.split('.')[1]}({', '.join(rest)})"


@code.lowers(*OPERATORS)
def operator(node: OpNode) -> str:
    if node.attrs.get("alpha", 1) != 1 or node.attrs.get("rounding_mode") is not None:
        return any_call(node)
    return f"{text(node['self'])} {OPERATORS[node.op_type.rpartition('.')[0]]} {text(node['other'])}"


@code.lowers("aten.slice.Tensor")
def slices(node: OpNode) -> str:
    bounds = [text(node[name]) for name in ("start", "end", "step")]
    shown = ":".join("" if bound in ("None", str(sys.maxsize)) else bound for bound in bounds).removesuffix(":1")
    return f"{text(node['self'])}[{':, ' * (node['dim'] % len(node['self'].shape))}{shown}]"


def any_call(node: OpNode) -> str:
    """Fallback: call torch's operator, with arguments by name."""
    return f"torch.ops.{node.op_type}({', '.join(call(node))})"


def call(node: OpNode, in_order: bool = False) -> Iterator[str]:
    """Return the arguments of a node without defaults: leading ones by position, the rest by name."""
    by_place = True
    for argument in arguments(find_operator(node.op_type)):
        value = node.elements(argument.name) if argument.is_tensor_list else node[argument.name]
        if argument.has_default and type(value) is type(argument.default) and value == argument.default:
            by_place = False
            continue
        is_tensor = argument.is_tensor_list or isinstance(value, TensorMeta)
        by_place = by_place and (is_tensor or (in_order and not argument.keyword_only))
        yield text(value) if by_place else f"{argument.name}={text(value)}"


def text(value: Any) -> str:
    """Return an argument as Python source."""
    if isinstance(value, TensorMeta):
        return value.name if value.param is None else place(value.param.keys[0])
    if isinstance(value, list):
        return f"[{', '.join(map(text, value))}]"
    if isinstance(value, float) and not math.isfinite(value):
        return f"float('{value}')"
    if isinstance(value, (Device, Expr)):
        return repr(str(value)) if isinstance(value, Device) else f"({value})"
    return f"torch.{value}" if isinstance(value, (Dtype, Layout, MemoryFormat)) else repr(value)


def place(key: str) -> str:
    """Return a state-dict key as an attribute expression: `self.layers[0].weight`."""
    named = ((step, step.isidentifier() and not keyword.iskeyword(step)) for step in key.split("."))
    return "self" + "".join(f".{s}" if is_name else f"[{s if s.isdecimal() else repr(s)}]" for s, is_name in named)


def to_code(ir: IR) -> str:
    """Return the source of a module equivalent to the graph; an error lists unsupported operators."""
    ir = ir.at_level("aten")
    rename(ir)
    for node in ir.nodes:
        if not code.handles(node.op_type) and isinstance(find_operator(node.op_type), torch._ops.OpOverload):
            code.lowers(node.op_type)(any_call)
    lowered = code.lower(ir)
    if not lowered.is_complete:
        raise torch_ir.ConversionError(lowered.report())
    calls = {layer.name: layer.value for layer in lowered}
    signature = ", ".join(["self", *(name for name, _ in parameters(ir))])
    lines = [*map(declaration, ir.params), f"\n    def forward({signature}):", *forward(lowered.ir, calls)]
    return HEADER.format(name=ir.model_name if ir.model_name.isidentifier() else "Model") + "\n".join(lines) + "\n"


def parameters(ir: IR) -> list[tuple[str, Tree]]:
    """Return the parameters of `forward`, and how they contain the graph's inputs."""
    positional, keywords = ir.input_tree.items
    named = [(ir.graph_inputs[t].name if isinstance(t, Slot) else f"arg{i}", t) for i, t in enumerate(positional.items)]
    return [*named, *zip(keywords.keys, keywords.items, strict=True)]


def rename(ir: IR) -> None:
    """Name every tensor with a short Python identifier, from its operator."""
    for name, tree in parameters(ir):
        if isinstance(tree, Slot):
            ir.graph_inputs[tree].name = name
    taken = {tensor.name for tensor in ir.graph_inputs} | {name for name, _ in parameters(ir)}
    taken |= {"self", "torch", "F", "int", "result", *ir.symbols, *keyword.kwlist}
    for node in ir.nodes:
        word = node.op_type.split(".")[1].strip("_").rpartition("_")[2]
        for tensor in node.outputs:
            tensor.name = next(name for name in numbered(word) if name not in taken)
            taken.add(tensor.name)


def numbered(word: str) -> Iterator[str]:
    """`add`, `add_1`, `add_2`, and so on."""
    yield word
    yield from (f"{word}_{number}" for number in itertools.count(1))


def declaration(tensor: TensorMeta) -> str:
    """Return the line that declares a parameter, buffer or constant."""
    param = tensor.param
    made = f"torch.empty({list(tensor.shape)}{'' if tensor.dtype == 'float32' else f', dtype=torch.{tensor.dtype}'})"
    if param.kind == "parameter":
        made = f"nn.Parameter({made}{'' if 'float' in tensor.dtype else ', requires_grad=False'})"
    elif param.data is not None and param.data.raw:
        values = torch.frombuffer(bytearray(param.data.raw), dtype=getattr(torch, tensor.dtype)).reshape(tensor.shape)
        made = f"torch.tensor({text(values.tolist())}, dtype=torch.{tensor.dtype})"
    beside = "" if param.in_state_dict else ", persistent=False"
    return f"{INDENT}self.declare({made}, {', '.join(map(repr, param.keys))}{beside})"


def forward(ir: IR, calls: dict[str, str]) -> Iterator[str]:
    """Return the body of `forward`: unpack inputs, one line per node, assemble outputs."""
    module = None
    for name, tree in parameters(ir):
        slots = [(path, ir.graph_inputs[leaf]) for path, leaf in leaves(tree) if isinstance(leaf, Slot)]
        for part in (name, *(part for path, tensor in slots for part in (name + path, tensor.name))):
            if not PLACE.fullmatch(part):
                raise torch_ir.ConversionError(f"the input {part!r:.60} cannot be written in Python")
        yield from (f"{INDENT}{tensor.name} = {name}{path}" for path, tensor in slots if path)
        yield from sizes(ir, [tensor for _, tensor in slots])
    for node in (node for node in ir.nodes if node.name in calls):  # the others are assertions
        if node.origin.module != module:
            module = node.origin.module
            comment = f"# {module or 'the model'}: {node.origin.module_class}"
            yield INDENT + (comment if comment.isprintable() else repr(comment))
        names = ", ".join(tensor.name for tensor in node.outputs)
        left = f"[{names}]" if "List" in str(find_operator(node.op_type)._schema.returns) else names
        yield f"{INDENT}{left} = {calls[node.name]}" if names else INDENT + calls[node.name]
        yield from sizes(ir, node.outputs)
    yield f"{INDENT}result = {nested(ir.output_tree, [text(tensor) for tensor in ir.graph_outputs])}"
    yield from (f"{INDENT}{text(target)}.copy_({text(value)})" for target, value in ir.mutations)
    yield f"{INDENT}return result"


def sizes(ir: IR, tensors: Sequence[TensorMeta]) -> Iterator[str]:
    """Return the symbols whose values are read from these tensors."""
    for symbol in (symbol for symbol in ir.symbols.values() if symbol.tensor in tensors):
        if symbol.dim is not None and symbol.tensor.shape[symbol.dim] != symbol.name:
            raise torch_ir.ConversionError(f"{symbol.name!r} would have to be solved for")
        dim = "" if symbol.dim is None else f".shape[{symbol.dim}]"
        yield f"{INDENT}{symbol.name} = int({symbol.tensor.name}{dim})"


def nested(tree: Tree, outputs: list[str]) -> str:
    """Return the nested outputs; an object with fields becomes a dict, a named tuple a tuple."""
    if not isinstance(tree, Branch):
        return outputs[tree] if isinstance(tree, Slot) else text(tree)
    items = [nested(item, outputs) for item in tree.items]
    if tree.keys and tree.kind != "tuple":
        return "{" + ", ".join(f"{key!r}: {item}" for key, item in zip(tree.keys, items, strict=True)) + "}"
    return f"[{', '.join(items)}]" if tree.kind == "list" else f"({', '.join(items)}{',' * (len(items) == 1)})"


def main() -> str | None:
    try:
        entry = catalogue.find(sys.argv[1] if len(sys.argv) > 1 else "mlp")
        ir = torch_ir.extract_ir(entry.build(), entry.inputs(), kwargs=entry.kwargs(), strict=False)
        print(to_code(ir), end="")
    except (catalogue.UnknownNameError, torch_ir.ConversionError) as error:
        return str(error)
    return None


if __name__ == "__main__":
    sys.exit(main())
