"""Shape rules for the most common operators, a hundred times as fast as torch's, also for symbolic sizes.

A rule applies only to unambiguous cases: tensors of one float dtype, with common arguments. torch checks all other
nodes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from torch_ir.ir import OpNode, TensorMeta
from torch_ir.ir.graph.operator_sets import FLOATS
from torch_ir.ir.json.json_fields import Dim

Shape = Sequence[Dim]
Rule = Callable[[OpNode, TensorMeta], "Shape | None"]  # the output shape from the first input, if that is a plain case
_RULES: dict[str, Rule] = {}


def is_plainly_so(node: OpNode) -> bool:
    """Whether a rule here confirms the declared output of a node; False means unknown."""
    rule = _RULES.get(node.op_type)
    if rule is None or len(node.outputs) != 1 or not node.inputs:
        return False
    first, made = node.inputs[0], node.outputs[0]
    if first.dtype not in FLOATS or any(tensor.dtype != first.dtype for tensor in (*node.inputs, made)):
        return False
    shape = rule(node, first)
    return shape is not None and tuple(shape) == made.shape


def _rule(*names: str) -> Callable[[Rule], Rule]:
    def register(function: Rule) -> Rule:
        _RULES.update((f"aten.{name}", function) for name in names)
        return function

    return register


@_rule(
    "relu.default", "gelu.default", "silu.default", "sigmoid.default", "tanh.default", "exp.default", "neg.default",
    "sqrt.default", "rsqrt.default", "cos.default", "sin.default", "dropout.default",
)  # fmt: skip
def _like_its_input(node: OpNode, first: TensorMeta) -> Shape | None:
    return first.shape if len(node.inputs) == 1 else None


@_rule("add.Tensor", "sub.Tensor", "mul.Tensor", "div.Tensor")
def _of_two_alike(node: OpNode, first: TensorMeta) -> Shape | None:
    is_plain = node.args == ("self", "other") and type(node.attrs.get("alpha", 1)) in (int, float)
    return first.shape if is_plain and node.inputs[1].shape == first.shape else None


@_rule("batch_norm.default")
def _batch_norm(node: OpNode, first: TensorMeta) -> Shape | None:
    given = dict(zip(node.args, node.inputs, strict=True))
    if (
        len(first.shape) < 2
        or 0 in first.shape
        or node.attrs.get("training") is not False
        or not given.keys() >= _STATISTICS
    ):
        return None
    return first.shape if all(tensor.shape == (first.shape[1],) for tensor in node.inputs[1:]) else None


_STATISTICS = {"input", "running_mean", "running_var"}


@_rule("layer_norm.default")
def _layer_norm(node: OpNode, first: TensorMeta) -> Shape | None:
    tail = tuple(node.attrs.get("normalized_shape") or ())
    if not tail or node.args[:1] != ("input",) or first.shape[-len(tail) :] != tail:
        return None
    return first.shape if all(tensor.shape == tail for tensor in node.inputs[1:]) else None


@_rule("softmax.int")
def _softmax(node: OpNode, first: TensorMeta) -> Shape | None:
    dim = node.attrs.get("dim")
    is_plain = type(dim) is int and -len(first.shape) <= dim < len(first.shape) and node.attrs.get("dtype") is None
    return first.shape if is_plain else None


@_rule("linear.default")
def _linear(node: OpNode, first: TensorMeta) -> Shape | None:
    if node.args not in (("input", "weight"), ("input", "weight", "bias")) or not first.shape:
        return None
    weight = node.inputs[1].shape
    if len(weight) != 2 or weight[1] != first.shape[-1] or any(bias.shape != weight[:1] for bias in node.inputs[2:]):
        return None
    return (*first.shape[:-1], weight[0])


@_rule("conv2d.default")
def _conv2d(node: OpNode, first: TensorMeta) -> Shape | None:
    if node.args not in (("input", "weight"), ("input", "weight", "bias")):
        return None
    x: Any = first.shape
    weight: Any = node.inputs[1].shape
    groups: Any = node.attrs.get("groups")
    pairs: Any = [node.attrs.get(name) for name in ("stride", "padding", "dilation")]
    if not (_are_positive(x, 4) and _are_positive(weight, 4) and _are_positive([groups], 1)):
        return None
    if not all(_are_whole(pair, 2) for pair in pairs) or any(bias.shape != weight[:1] for bias in node.inputs[2:]):
        return None
    if weight[1] * groups != x[1] or weight[0] % groups:
        return None
    sizes = [_convolved(x[2 + axis], weight[2 + axis], *(pair[axis] for pair in pairs)) for axis in (0, 1)]
    return (x[0], weight[0], *sizes) if min(sizes) > 0 else None


def _convolved(size: int, kernel: int, stride: int, padding: int, dilation: int) -> int:
    return (size + 2 * padding - dilation * (kernel - 1) - 1) // stride + 1 if stride and dilation else 0


@_rule("view.default", "reshape.default")
def _reshape(node: OpNode, first: TensorMeta) -> Shape | None:
    shape: Any = node.attrs.get("size" if node.op_type == "aten.view.default" else "shape")
    given: Any = first.shape
    if first.stride is not None or not isinstance(shape, list) or not _are_positive(shape, len(shape)):
        return None
    return shape if _are_positive(given, len(given)) and math.prod(shape) == math.prod(given) else None


@_rule("transpose.int")
def _transpose(node: OpNode, first: TensorMeta) -> Shape | None:
    one, other, rank = node.attrs.get("dim0"), node.attrs.get("dim1"), len(first.shape)
    if not (type(one) is int and type(other) is int and -rank <= one < rank and -rank <= other < rank):
        return None
    shape = list(first.shape)
    shape[one], shape[other] = shape[other], shape[one]
    return shape


@_rule("permute.default")
def _permute(node: OpNode, first: TensorMeta) -> Shape | None:
    dims: Any = node.attrs.get("dims")
    is_plain = isinstance(dims, list) and sorted(dims) == list(range(len(first.shape)))
    return [first.shape[dim] for dim in dims] if is_plain else None


def _are_whole(numbers: Any, count: int) -> bool:
    """Whether these are `count` non-negative integers."""
    return (
        isinstance(numbers, (list, tuple))
        and len(numbers) == count
        and all(type(number) is int and number >= 0 for number in numbers)
    )


def _are_positive(numbers: Any, count: int) -> bool:
    return _are_whole(numbers, count) and 0 not in numbers
