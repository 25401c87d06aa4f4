"""Write dtypes that came from torch's default dtype into the graph: a graph is defined under float32.

    set_default_dtype(float64)
    before   zeros: float64[4] = aten.zeros.default(size=[4], dtype=None)
             div: float64[4] = aten.div.Tensor(self=arange, other=2)
    after    zeros: float64[4] = aten.zeros.default(size=[4], dtype=float64)
             to: float64[4] = aten.to.dtype(self=arange, dtype=float64)
             div: float64[4] = aten.div.Tensor(self=to, other=2)

A graph that was captured under float32 is not changed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from torch_ir.errors import ConversionError
from torch_ir.ir import IR, Device, Dtype, Expr, OpNode, TensorMeta, evaluate
from torch_ir.ir.graph.free_names import FreeNames, taken_names
from torch_ir.ir.sizes.expressions import names_in
from torch_ir.ops.calling import empty, keywords, results
from torch_ir.ops.neutral_state import DEFAULT_DTYPE, NeutralState, makes_default_dtype
from torch_ir.ops.schema import find_operator
from torch_ir.ops.torch_internals import OpOverload
from torch_ir.ops.torch_types import TORCH_DTYPES, dtype_name, to_torch

_USUAL = frozenset(("float32", "complex64"))  # results under the default dtype of graphs
_WHERE, _WHERE_SCALARS = "aten.where.self", "aten.where.Scalar"
_CLOSE = "aten.isclose.default"  # compares integers as numbers of the default dtype
_WITHOUT_RULE = {"aten.bincount.default": ["float64"]}  # with integer weights, under every default dtype
_SIZE = 4  # for every open size: the result dtype of these operators does not depend on sizes


def write_default_dtypes(ir: IR) -> IR:
    """Make every node of a new graph and its functions compute under float32 the dtype that it had at capture."""
    for body in ir.functions.values():
        write_default_dtypes(body)
    if not any(map(_is_suspect, ir.nodes)):
        return ir
    names = FreeNames(taken_names(ir))
    nodes: list[OpNode] = []
    for node in ir.nodes:
        if _is_suspect(node) and not _makes_declared(node):
            nodes += _written_out(node, names)
        nodes.append(node)
    ir.nodes = nodes
    return ir.check()


def _is_suspect(node: OpNode) -> bool:
    return any(output.dtype not in _USUAL for output in node.outputs) and makes_default_dtype(node)


def refuse_close_integers(ir: IR, default_dtype: torch.dtype) -> None:
    """Refuse `isclose` on integers under another default dtype: no dtype in the graph shows how it compares them."""
    for node in ir.all_nodes() if default_dtype != DEFAULT_DTYPE else ():
        if node.op_type == _CLOSE and not any(tensor.dtype.startswith(("float", "bfloat")) for tensor in node.inputs):
            raise _refusal(node, dtype_name(default_dtype))


def _written_out(node: OpNode, names: FreeNames) -> list[OpNode]:
    """Put the dtype into the node itself or cast its inputs; return the nodes to insert before it."""
    dtype = Dtype(node.outputs[0].dtype)
    before: list[OpNode] = []
    if "dtype" in node.attrs:
        node.attrs["dtype"] = dtype
    elif node.op_type == _WHERE_SCALARS:
        before = [_scalar(node, name, dtype, names) for name in ("self", "other")]
        node.op_type = _WHERE
        node.attrs.clear()
        inputs = {
            "condition": node["condition"],
            **dict(zip(("self", "other"), (it.output for it in before), strict=True)),
        }
        node.set_inputs(list(inputs.values()), list(inputs))
    else:
        casts = {
            tensor: _cast(node, tensor, dtype, names) for tensor in dict.fromkeys(node.inputs) if _counts(node, tensor)
        }
        before = list(casts.values())
        node.inputs = tuple(casts[tensor].output if tensor in casts else tensor for tensor in node.inputs)
    if not _makes_declared(node):
        raise _refusal(node, dtype)
    return before


def _counts(node: OpNode, tensor: TensorMeta) -> bool:
    """Whether an input takes part in type promotion; the condition of `where` does not."""
    return "condition" not in node.args or node["condition"] is not tensor


def _cast(node: OpNode, tensor: TensorMeta, dtype: Dtype, names: FreeNames) -> OpNode:
    name = names.free("to")
    attrs = {"dtype": dtype, "non_blocking": False, "copy": False, "memory_format": None}
    made = TensorMeta(name, tensor.shape, dtype, stride=_stride_of_cast(tensor))
    return OpNode(name, "aten.to.dtype", [tensor], [made], attrs, args=["self"], origin=node.origin)


def _stride_of_cast(tensor: TensorMeta) -> Sequence[int | str] | None:
    """Return the strides of the result of a cast: those of its input if that is dense."""
    if tensor.stride is None or not tensor.is_static or not all(isinstance(step, int) for step in tensor.stride):
        return tensor.stride
    cast = _like(tensor).to(TORCH_DTYPES["float64"])
    return None if cast.is_contiguous() else cast.stride()


def _scalar(node: OpNode, argument: str, dtype: Dtype, names: FreeNames) -> OpNode:
    name = names.free("scalar_tensor")
    attrs = {"s": node.attrs[argument], "dtype": dtype, "layout": None, "device": Device("cpu"), "pin_memory": None}
    return OpNode(
        name, "aten.scalar_tensor.default", [], [TensorMeta(name, (), dtype)], attrs, args=[], origin=node.origin
    )


def _makes_declared(node: OpNode) -> bool:
    """Whether a node has the same result dtypes under float32; assumed for operators outside ATen."""
    made = _made(node)
    if made is None:
        return not node.op_type.startswith("aten.") or node.attrs.get("dtype") is not None
    return made == [output.dtype for output in node.outputs]


def _made(node: OpNode) -> list[str] | None:
    """Return the result dtypes of a node under float32; None if torch cannot infer them."""
    if node.op_type in _WITHOUT_RULE:
        return _WITHOUT_RULE[node.op_type]
    operator = find_operator(node.op_type)
    if not isinstance(operator, OpOverload):
        return None
    try:
        tensors = {name: _like(tensor) for name, tensor in zip(node.args, node.inputs, strict=True)}
        with NeutralState():
            made = results(operator, keywords(tensors, node.attrs, _on_meta))
        return [dtype_name(tensor.dtype) for tensor in made]
    except Exception:  # torch raises many types where a call needs values
        return None


def _like(tensor: TensorMeta) -> Tensor:
    stride = None if tensor.stride is None else _numbers(tensor.stride)
    return empty(_numbers(tensor.shape), TORCH_DTYPES[tensor.dtype], stride)


def _numbers(sizes: Sequence[int | str]) -> list[int]:
    return [int(_number(size)) for size in sizes]


def _number(size: Any) -> Any:
    return size if isinstance(size, int) else evaluate(size, dict.fromkeys(names_in(size), _SIZE))


def _on_meta(value: Any) -> Any:
    if isinstance(value, Device):
        return to_torch(Device("meta"))
    return _number(value) if isinstance(value, Expr) else to_torch(value)


def _refusal(node: OpNode, dtype: str) -> ConversionError:
    place = f"{node.origin.source}: " if node.origin.source else ""
    return ConversionError(
        f"{place}{node.op_type} takes its dtype, {dtype}, from torch.set_default_dtype, which a graph cannot express; "
        "cast its inputs, or capture under float32"
    )
