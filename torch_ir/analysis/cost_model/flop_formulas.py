"""Multiply-adds of operators: one formula per operator, keyed by its name without overload.

Only contractions have a formula: matrix products, convolutions, attention, recurrent layers. The counts are those of
`torch.utils.flop_counter`: padding and causal masks save nothing, a bias is free.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable

from torch_ir.analysis.shapes.size_polynomials import product, total
from torch_ir.errors import INVALID_ARGUMENTS, GraphError
from torch_ir.ir import OpNode, TensorMeta
from torch_ir.ir.graph.operator_sets import base_name
from torch_ir.ir.json.json_fields import Dim

Shape = tuple[Dim, ...]
_PACKED_VALUES = {"float4_e2m1fn_x2": 2}  # values per element of a dtype


def macs(node: OpNode) -> Dim:
    """Return the multiply-adds of one call; 0 if it is not a contraction."""
    formula = FORMULAS.get(base_name(node.op_type))
    try:
        return 0 if formula is None else formula(node)
    except INVALID_ARGUMENTS:
        raise GraphError(f"{node!r} does not match the arguments of its operator, so its cost is unknown") from None


def how_counted(op_type: str) -> str:
    """Describe how the multiply-adds of an operator are counted; empty if it is not a contraction."""
    return (getattr(FORMULAS.get(base_name(op_type)), "__doc__", None) or "").partition("\n")[0]


def _shape(node: OpNode, argument: str, rank: int = 1) -> Shape:
    """Return the shape of a tensor argument that must have at least this rank."""
    shape: Shape = node[argument].shape
    if len(shape) < rank:
        raise ValueError(argument)
    return shape


def _matrices(left: str) -> Callable[[OpNode], Dim]:

    def formula(node: OpNode) -> Dim:
        """One row of the left operand per element of the result."""
        return product(*node.outputs[0].shape, _shape(node, left)[-1], _PACKED_VALUES.get(node[left].dtype, 1))

    return formula


def _summed_matrices(node: OpNode) -> Dim:
    """A batch of matrix products, summed."""
    return product(*_shape(node, "batch1", 3), _shape(node, "batch2", 3)[-1])


def _grouped_matrices(node: OpNode) -> Dim:
    """Groups split the rows, the columns, or the contracted dimension."""
    left, right = _shape(node, "self", 2), _shape(node, "mat2", 2)
    if len(left) == len(right) == 2:
        return product(*left, right[-1])
    return product(*node.outputs[0].shape, left[-1])


def _tensordot(node: OpNode) -> Dim:
    """The contracted dimensions, for every element of the result."""
    left = _shape(node, "self", 0)
    return product(*node.outputs[0].shape, *(left[dim] for dim in node["dims_self"]))


def _bilinear(node: OpNode) -> Dim:
    """The weight times the first input, and the result times the second input."""
    first, second = _shape(node, "input1"), _shape(node, "input2")
    return total([product(*first[:-1], *_shape(node, "weight", 3)), product(*node.outputs[0].shape, second[-1])])


def _convolution(node: OpNode) -> Dim:
    """The whole weight for every spatial position of the output, or of the input if transposed."""
    read, kernel = ("X", "W") if base_name(node.op_type) in _PACKED else ("input", "weight")
    weight = _shape(node, kernel, 3)
    is_transposed = base_name(node.op_type) in _TRANSPOSED or node.attrs.get("transposed") is True
    spatial = len(weight) - 2
    places = _shape(node, read, spatial + 1) if is_transposed else node.outputs[0].shape
    return product(*places[: -spatial - 1], *places[-spatial:], *weight)


def _convolution_backward(node: OpNode) -> Dim:
    """Count the convolution once for each of the gradients of its input and its weight."""
    weight = _shape(node, "weight", 3)
    spatial = len(weight) - 2
    places = _shape(node, "input" if node["transposed"] else "grad_output", spatial + 1)
    return product(*places[: -spatial - 1], *places[-spatial:], *weight, sum(map(bool, node["output_mask"][:2])))


def _attention(node: OpNode) -> Dim:
    """Scores of every query with every key, and the weighted sum of values; heads are those of the query."""
    query, key, value = (_shape(node, name, 2) for name in ("query", "key", "value"))
    return product(*query[:-1], key[-2], total([query[-1], value[-1]]))


def _attention_backward(node: OpNode) -> Dim:
    """Scores again, and the gradients of scores, values, queries and keys."""
    query, key, value = (_shape(node, name, 2) for name in ("query", "key", "value"))
    return product(*query[:-1], key[-2], total([product(3, query[-1]), product(2, value[-1])]))


def _recurrent(node: OpNode) -> Dim:
    """Every weight matrix once per step of every sequence."""
    steps = _shape(node, "data" if "data" in node.args else "input")[:-1]
    weights = [weight.shape for weight in node.elements("params") if isinstance(weight, TensorMeta)]
    return product(*steps, total(product(*shape) for shape in weights if len(shape) == 2))


def _recurrent_cell(node: OpNode) -> Dim:
    """Both weight matrices once per sequence."""
    weights = [product(*_shape(node, name, 2)) for name in ("w_ih", "w_hh")]
    return product(*_shape(node, "input")[:-1], total(weights))


def _einsum(node: OpNode) -> Dim:
    """Operands are contracted left to right: all labels of a pair, except those already summed."""
    equation = str(node["equation"]).replace(" ", "")
    left, arrow, result = equation.partition("->")
    operands = [tensor.shape for tensor in node.elements("tensors") if isinstance(tensor, TensorMeta)]
    labels = [_labels(text, len(shape)) for text, shape in zip(left.split(","), operands, strict=True)]
    counts = Counter(label for group in labels for label in group)
    kept = set(_labels(result, len(node.outputs[0].shape)) if arrow else [name for name in counts if counts[name] == 1])
    last = {label: index for index, group in enumerate(labels) for label in group}  # the last operand that has it
    sizes: dict[str, Dim] = {}
    for group, shape in zip(labels, operands, strict=True):
        sizes.update((label, size) for label, size in zip(group, shape, strict=True) if sizes.get(label, 1) == 1)
    costs, met = [], set(labels[0])
    for index, group in enumerate(labels[1:], 1):
        own, both = set(group), met.union(group)
        needed = {label for label in both if label in kept or last[label] > index}
        summed = (met & own) - needed
        if summed:
            costs.append(product(*(sizes[label] for label in summed | needed)))
        met = needed
    return total(costs)


def _labels(text: str, rank: int) -> list[str]:
    """Return the label of each dimension, a letter; those of an ellipsis are numbered from the last."""
    before, dots, after = text.partition("...")
    if not re.fullmatch("[A-Za-z]*", before + after):
        raise ValueError(text)
    hidden = rank - len(before) - len(after) if dots else 0
    return [*before, *(f".{number}" for number in range(hidden, 0, -1)), *after]


_PACKED = ("mkldnn._convolution_pointwise", "mkldnn._convolution_transpose_pointwise")
_TRANSPOSED = frozenset([*(f"aten.conv_transpose{rank}d" for rank in (1, 2, 3)), _PACKED[1]])
LEFT_OPERANDS = {
    "mm": "self", "bmm": "self", "matmul": "self", "mv": "self", "dot": "self", "vdot": "self", "inner": "self",
    "linear": "input", "addmm": "mat1", "baddbmm": "batch1", "addmv": "mat", "_int_mm": "self", "_scaled_mm": "self",
    "_weight_int8pack_mm": "self", "_weight_int4pack_mm": "self", "_weight_int4pack_mm_for_cpu": "self",
    "_weight_int4pack_mm_with_scales_and_zeros": "self", "_dyn_quant_matmul_4bit": "inp", "_scaled_mm_v2": "self",
    "_mixed_dtypes_linear": "input", "_addmm_activation": "mat1", "linalg_matmul": "self",
}  # fmt: skip
_CONVOLUTIONS = (
    "conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d", "convolution",
    "_convolution", "_convolution_mode", "convolution_overrideable",
)  # fmt: skip
_ATTENTIONS = (
    "scaled_dot_product_attention", "_scaled_dot_product_attention_math", "_scaled_dot_product_flash_attention",
    "_scaled_dot_product_flash_attention_for_cpu", "_scaled_dot_product_efficient_attention",
    "_scaled_dot_product_cudnn_attention", "_scaled_dot_product_fused_attention_overrideable",
)  # fmt: skip
_ATTENTION_BACKWARDS = (
    "_scaled_dot_product_flash_attention_backward", "_scaled_dot_product_flash_attention_for_cpu_backward",
    "_scaled_dot_product_efficient_attention_backward", "_scaled_dot_product_cudnn_attention_backward",
)  # fmt: skip
_RECURRENT = ("lstm", "gru", "rnn_tanh", "rnn_relu")
FORMULAS: dict[str, Callable[[OpNode], Dim]] = {
    **{f"aten.{name}": _matrices(left) for name, left in LEFT_OPERANDS.items()},
    **{f"aten.{name}": _convolution for name in _CONVOLUTIONS},
    **dict.fromkeys(_PACKED, _convolution),
    "mkldnn._linear_pointwise": _matrices("X"),
    **{f"aten.{name}": _attention for name in _ATTENTIONS},
    **{f"aten.{name}": _attention_backward for name in _ATTENTION_BACKWARDS},
    "aten.convolution_backward": _convolution_backward,
    **{f"aten.{name}": _recurrent for name in _RECURRENT},
    **{f"aten.{name}_cell": _recurrent_cell for name in _RECURRENT},
    "aten.addbmm": _summed_matrices,
    "aten._grouped_mm": _grouped_matrices,
    "aten._scaled_grouped_mm": _grouped_matrices,
    "aten.tensordot": _tensordot,
    "aten.bilinear": _bilinear,
    "aten.einsum": _einsum,
    "higher_order.flex_attention": _attention,
    "transformers.grouped_mm_fallback": _matrices("input"),  # the experts of its mixture models
}
