"""Builders of nodes for adversarial graphs."""

from collections.abc import Callable, Sequence
from typing import Any

from torch_ir.ir import FunctionRef, OpNode, Origin, TensorMeta
from torch_ir.ir.json.json_fields import Dim

_UNARY = ("relu", "sin", "neg", "exp")


def op_node(name: str, op: str, inputs: Sequence[TensorMeta], shape: Sequence[Dim], **attrs: Any) -> OpNode:
    """A node with one float32 output."""
    dtype = inputs[0].dtype if inputs else "float32"
    args = ("self", "other")[: len(inputs)]
    origin = attrs.pop("origin", Origin())
    return OpNode(name, f"aten.{op}", inputs, [TensorMeta(name, tuple(shape), dtype)], attrs, args=args, origin=origin)


def unary(index: int, source: TensorMeta, origin: Origin = Origin()) -> OpNode:
    return op_node(f"y{index}", f"{_UNARY[index % len(_UNARY)]}.default", [source], source.shape, origin=origin)


def add(name: str, one: TensorMeta, other: TensorMeta) -> OpNode:
    return op_node(name, "add.Tensor", [one, other], one.shape, alpha=1)


def cat(name: str, sources: Sequence[TensorMeta], size: Dim, *rest: Dim) -> OpNode:
    out = TensorMeta(name, (size, *rest), sources[0].dtype)
    names = [f"tensors.{index}" for index in range(len(sources))]
    return OpNode(name, "aten.cat.default", sources, [out], {"dim": 0}, args=names)


def chain(first: TensorMeta, count: int, step: Callable[[int, TensorMeta], OpNode]) -> list[OpNode]:
    nodes: list[OpNode] = []
    for index in range(count):
        nodes.append(step(index, nodes[-1].output if nodes else first))
    return nodes


def call(name: str, function: str, *sources: TensorMeta) -> OpNode:
    """A call of a function whose inputs are x, x1, x2, ... and whose output has the shape of the first."""
    args = ["x", *(f"x{index}" for index in range(1, len(sources)))]
    outputs = [TensorMeta(name, sources[0].shape, sources[0].dtype)]
    return OpNode(name, "call", sources, outputs, {"function": FunctionRef(function)}, args=args)
