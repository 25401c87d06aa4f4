"""Bytes that an operator reads and writes, without fusion and caches.

Each distinct input and each output counts once; elements repeated by a stride of 0 count once. A view moves nothing. A
look-up reads as much of its table as it returns, and at most the whole table.
"""

from __future__ import annotations

from torch_ir.analysis.shapes.size_polynomials import product, total
from torch_ir.ir import OpNode, TensorMeta
from torch_ir.ir.graph.attr_types import DTYPES
from torch_ir.ir.graph.operator_sets import DROPOUTS, base_name
from torch_ir.ir.json.json_fields import Dim

VIEWS = frozenset(
    f"aten.{name}"
    for name in (
        "_conj", "_indices", "_neg_view", "_reshape_alias", "_unsafe_view", "_values", "adjoint", "alias", "as_strided",
        "broadcast_tensors", "broadcast_to", "ccol_indices", "chunk", "col_indices", "conj", "crow_indices", "detach",
        "diagonal", "dsplit", "expand", "expand_as", "hsplit", "imag", "indices", "lift_fresh", "linalg_diagonal", "mH",
        "mT", "matrix_H", "meshgrid", "moveaxis", "movedim", "narrow", "numpy_T", "permute", "positive", "real",
        "row_indices", "select", "slice", "split", "split_with_sizes", "squeeze", "swapaxes", "swapdims", "t",
        "tensor_split", "transpose", "unbind", "unflatten", "unfold", "unsqueeze", "values", "view", "view_as",
        "view_as_complex", "view_as_real", "vsplit",
    )
)  # fmt: skip
# They copy only if needed: for another dtype, for other strides, or on request.
SOMETIMES_VIEWS = frozenset(
    f"aten.{name}"
    for name in (
        "contiguous", "flatten", "ravel", "reshape", "reshape_as", "resolve_conj", "resolve_neg", "to", "type_as",
    )
)  # fmt: skip
_SAME_STRIDES = frozenset(("aten.contiguous", "aten.to"))  # these copy for a memory format that the input has not
_WAITING = "_c10d_functional.wait_tensor"  # returns its input
# They read as much of this argument as they return.
_LOOK_UPS = {
    "aten.embedding": "weight", "aten.index": "self", "aten._unsafe_index": "self", "aten.index_select": "self",
    "aten.gather": "self", "aten.take": "self", "aten.take_along_dim": "self",
}  # fmt: skip


def bytes_of(tensor: TensorMeta) -> Dim:
    """Return the size of a tensor in bytes, without repeated elements."""
    strides = tensor.stride or (1,) * len(tensor.shape)
    return product(DTYPES[tensor.dtype], *(dim for dim, step in zip(tensor.shape, strides, strict=True) if step != 0))


def span_of(tensor: TensorMeta) -> Dim:
    """Return the bytes from the first element of a tensor to the end of its last one: its strides may leave gaps."""
    if tensor.stride is None or 0 in tensor.shape:
        return product(DTYPES[tensor.dtype], *tensor.shape)
    steps = (product(total([size, -1]), step) for size, step in zip(tensor.shape, tensor.stride, strict=True))
    return product(DTYPES[tensor.dtype], total([1, *steps]))


def traffic(node: OpNode) -> tuple[Dim, Dim]:
    """Return the bytes that one call reads and writes."""
    if is_view(node) or not node.outputs:  # no outputs: an assertion, which is not counted
        return 0, 0
    written = total(map(bytes_of, node.outputs))
    table = _LOOK_UPS.get(base_name(node.op_type), "")
    whole = dict.fromkeys(tensor for name, tensor in zip(node.args, node.inputs, strict=True) if name != table)
    return total([*map(bytes_of, whole), *([_looked_up(node[table], written)] if table in node.args else [])]), written


def _looked_up(table: TensorMeta, written: Dim) -> Dim:
    """Return the bytes that a look-up reads of its table; with open sizes, as many as it returns."""
    whole = bytes_of(table)
    return min(whole, written) if isinstance(whole, int) and isinstance(written, int) else written


def is_view(node: OpNode) -> bool:
    """Whether a node returns a view of its input."""
    name = base_name(node.op_type)
    if node.op_type in DROPOUTS:  # a no-op except in training
        return node.attrs.get("train") is False
    if name not in SOMETIMES_VIEWS or not node.inputs or not node.outputs:
        return name in VIEWS or name == _WAITING
    source, made = node.inputs[0], node.outputs[0]
    is_moved = source.stride is not None and made.stride is None
    if name in _SAME_STRIDES:
        is_moved = source.stride != made.stride
    return source.dtype == made.dtype and not is_moved and not node.attrs.get("copy")
