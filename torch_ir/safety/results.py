"""Check declared outputs against shape inference: R12, without values or weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch_ir.analysis.shapes.inference import Shapes
from torch_ir.analysis.shapes.shape_rules import Made
from torch_ir.errors import ExpressionError, GraphError, ShapeError
from torch_ir.ir import OpNode, evaluate
from torch_ir.ir.sizes.expressions import Number
from torch_ir.ops.effects import gives_new_values
from torch_ir.ops.registry import executor_of


def check_results(node: OpNode, shapes: Shapes) -> bool:
    """Raise GraphError if the outputs of a node differ from the declared ones; return False if it has no shape rule."""
    if executor_of(node) is not None or gives_new_values(node):
        return False
    inputs = dict(zip(node.args, node.inputs, strict=True))
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
