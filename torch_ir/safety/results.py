"""Check declared outputs against shape rules: R12, without values or weights.

The rules of common operators on meta tensors are ten times as fast as fake tensors. If the result matches the declared
outputs, no other check is needed; otherwise shape inference decides.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from torch_ir.analysis.shapes.inference import Shapes, in_numbers
from torch_ir.analysis.shapes.open_sizes import Points
from torch_ir.analysis.shapes.shape_rules import Made
from torch_ir.errors import ExpressionError, GraphError, ShapeError
from torch_ir.ir import Device, OpNode, evaluate
from torch_ir.ir.sizes.expressions import Number
from torch_ir.ops.calling import empty, keywords, results
from torch_ir.ops.dim_range_checks import check_dims
from torch_ir.ops.effects import gives_new_values
from torch_ir.ops.neutral_state import NeutralState
from torch_ir.ops.own_shape_rules import call_on_meta
from torch_ir.ops.prepare_run import ordered_arguments
from torch_ir.ops.registry import executor_of
from torch_ir.ops.safe_shape_calls import is_safe_in_process, may_call_rule
from torch_ir.ops.schema import Operator
from torch_ir.ops.torch_internals import OpOverload
from torch_ir.ops.torch_types import TORCH_DTYPES, dtype_name, to_torch

_META = torch.device("meta")
# Each takes a tensor, and its outputs are on the same device: no kernel allocates real memory.
_COMMON = frozenset(
    f"aten.{name}"
    for name in (
        "linear.default", "matmul.default", "mm.default", "bmm.default", "addmm.default", "conv1d.default",
        "conv2d.default", "convolution.default", "batch_norm.default", "layer_norm.default",
        "native_layer_norm.default", "embedding.default", "scaled_dot_product_attention.default", "softmax.int",
        "_softmax.default", "max_pool2d.default", "dropout.default", "adaptive_avg_pool2d.default",
        "avg_pool2d.default", "relu.default", "gelu.default", "silu.default", "sigmoid.default", "tanh.default",
        "exp.default", "neg.default", "sqrt.default", "rsqrt.default", "cos.default", "sin.default",
        "hardtanh.default", "pow.Tensor_Scalar", "add.Tensor", "sub.Tensor", "mul.Tensor", "div.Tensor", "add.Scalar",
        "mul.Scalar", "where.self", "eq.Scalar", "ne.Scalar", "lt.Scalar", "le.Scalar", "gt.Scalar", "ge.Scalar",
        "eq.Tensor", "le.Tensor", "clamp.default", "masked_fill.Scalar", "mean.dim", "sum.dim_IntList",
        "view.default", "reshape.default", "_unsafe_view.default", "permute.default", "transpose.int", "t.default",
        "unsqueeze.default", "squeeze.dim", "expand.default", "slice.Tensor", "select.int", "flatten.using_ints",
        "cat.default", "stack.default", "contiguous.default", "clone.default", "to.dtype", "_to_copy.default",
    )
)  # fmt: skip
_MOST_KEPT = 1 << 16
_agreed: set[Any] = set()  # for the whole process


def check_results(node: OpNode, operator: Operator, shapes: Shapes, key: Any) -> bool:
    """Raise GraphError for a node whose outputs differ from the declared ones; return False if there is no shape rule.

    `key` identifies the node's form.
    """
    if executor_of(node) is not None or gives_new_values(node):
        return False
    inputs = dict(zip(node.args, node.inputs, strict=True))
    if _agrees(node, operator, key, shapes.points_for(inputs, node.attrs)):
        return True
    try:
        found = shapes.at_points(node.op_type, inputs, node.attrs)
    except ShapeError as error:
        raise _error(node, "$.inputs", str(error)) from None
    if found is None:
        return False
    try:
        for point, rows in zip(*found, strict=True):
            _compare(node, rows, point)
    except GraphError:
        if not shapes.is_decided(inputs, node.attrs):
            raise
        return False  # data-dependent sizes may always be such that the declared sizes are right
    return True


def _compare(node: OpNode, rows: Sequence[Made], sizes: Mapping[str, int]) -> None:
    """Compare the declared outputs of a node with the inferred ones at some sizes."""
    if len(rows) != len(node.outputs):
        raise _error(node, "$.outputs", f"{node.op_type} has {len(rows)} outputs, not {len(node.outputs)}")
    where = f" where {', '.join(f'{name} is {size}' for name, size in sizes.items())}" if sizes else ""
    for index, (tensor, (shape, dtype, _)) in enumerate(zip(node.outputs, rows, strict=True)):
        if tensor.dtype != dtype:
            raise _error(node, f"$.outputs[{index}].dtype", f"{node.op_type} returns {dtype}, not {tensor.dtype}")
        if tensor.shape != shape and _shape_at(node, index, sizes) != shape:
            message = f"{node.op_type} returns {list(shape)}{where}, not {list(tensor.shape)}"
            raise _error(node, f"$.outputs[{index}].shape", message)


def _shape_at(node: OpNode, index: int, sizes: Mapping[str, int]) -> tuple[Number, ...]:
    try:
        return tuple(evaluate(dim, sizes) for dim in node.outputs[index].shape)
    except ExpressionError as error:
        raise _error(node, f"$.outputs[{index}].shape", str(error)) from None


def _error(node: OpNode, path: str, message: str) -> GraphError:
    return GraphError(message, path, rule="R12", node=node.name)


# -- quick confirmation ------------------------------------------------------------------------------------------------


def _agrees(node: OpNode, operator: Operator, key: Any, points: Points) -> bool:
    """Whether a common operator confirms the declared outputs at all of these choices of the open sizes.

    False if it does not, or cannot be checked quickly. `key` contains everything else that the result depends on.
    """
    if node.op_type not in _COMMON or not isinstance(operator, OpOverload) or not points:
        return False
    return all(_agrees_at(node, operator, (key, *point.items()), point) for point in points)


def _agrees_at(node: OpNode, operator: OpOverload, key: Any, sizes: Mapping[str, int]) -> bool:
    if key in _agreed:
        return True
    try:
        is_so = _makes_declared(node, operator, sizes)
    except Exception:  # torch will report it again in the full check
        return False
    if is_so:
        if len(_agreed) >= _MOST_KEPT:
            _agreed.clear()
        _agreed.add(key)
    return is_so


def _makes_declared(node: OpNode, operator: OpOverload, sizes: Mapping[str, int]) -> bool:
    tensors, attrs = in_numbers(dict(zip(node.args, node.inputs, strict=True)), node.attrs, sizes)
    shapes = [shape for shape, _, _ in tensors.values()]
    if not may_call_rule(operator, shapes, {dtype for _, dtype, _ in tensors.values()}, attrs):
        return False
    if not is_safe_in_process(operator, shapes, attrs):
        return False
    given = {name: empty(shape, TORCH_DTYPES[dtype], stride) for name, (shape, dtype, stride) in tensors.items()}
    arguments = keywords(given, attrs, _on_meta)
    check_dims(node.op_type, arguments)
    with NeutralState():
        made = _made(node, operator, arguments, [tensor.dtype for tensor in given.values()])
    declared = [(tuple(evaluate(dim, sizes) for dim in tensor.shape), tensor.dtype) for tensor in node.outputs]
    return declared == [(tuple(tensor.shape), dtype_name(tensor.dtype)) for tensor in made]


def _made(
    node: OpNode, operator: OpOverload, arguments: Mapping[str, Any], dtypes: Sequence[torch.dtype]
) -> list[torch.Tensor]:
    """Return the results of a call by our own shape rule, else by torch's."""
    places, known, _ = ordered_arguments(node, operator, arguments, to_torch)
    try:
        made = call_on_meta(operator, dtypes, places, known)
    except Exception:
        return results(operator, arguments)
    return list(made) if isinstance(made, (list, tuple)) else [made]


def _on_meta(value: Any) -> Any:
    return _META if isinstance(value, Device) else to_torch(value)
