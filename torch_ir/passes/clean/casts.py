"""Casts: write each as `aten.to.dtype`; remove those that change nothing or are undone by the next."""

from __future__ import annotations

from typing import Any

from torch_ir.ir import Dtype, OpNode, TensorMeta
from torch_ir.passes.clean.same_layout import is_like
from torch_ir.passes.pass_registry import rule_pass
from torch_ir.rewrite import Builder, op, rule

CAST = "aten.to.dtype"
_LIKE_ANOTHER = ("aten.to.other", "aten.type_as.default")
_SPELLINGS = (CAST, "aten._to_copy.default", "aten.to.device", "aten.to.dtype_layout", *_LIKE_ANOTHER)
_SMALL_FLOATS = ("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz")
# dtype -> dtypes that represent each of its values exactly.
HELD_BY = {
    "float32": {"float64"},
    "float16": {"float32", "float64"},
    "bfloat16": {"float32", "float64"},
    **{name: {"float16", "bfloat16", "float32", "float64"} for name in _SMALL_FLOATS},
    "complex64": {"complex128"},
    "int32": {"int64", "float64"},
    "int16": {"int32", "int64", "float32", "float64"},
    "int8": {"int16", "int32", "int64", "float16", "bfloat16", "float32", "float64"},
    "uint8": {"int16", "int32", "int64", "float16", "bfloat16", "float32", "float64"},
    "bool": {"uint8", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64"},
}


@rule(op(*_SPELLINGS, self="x"))
def written_as_cast(g: Builder, node: OpNode, x: TensorMeta) -> Any:
    """_to_copy(x, dtype), to(x, device, dtype), type_as(x, y)  ->  to(x, dtype);  of the same dtype  ->  x"""
    device = node.attrs.get("device")
    if (device is not None or node.op_type in _LIKE_ANOTHER) and not g.is_home(device):
        return f"it may move to {device or 'the device of another tensor'}"
    if is_like(x, node.output):
        return x
    if node.op_type == CAST and not node["non_blocking"] and not node["copy"] and node["memory_format"] is None:
        return None
    made = g.op(CAST, self=x, dtype=Dtype(node.output.dtype))
    return made if is_like(made, node.output) else "its result has another layout"


@rule(op(CAST, self=op(CAST, self="x").named("inner")))
def one_cast(g: Builder, node: OpNode, inner: OpNode, x: TensorMeta) -> Any:
    """to(to(x, float64), bfloat16)  ->  to(x, bfloat16), where the first cast loses nothing"""
    if inner.output.dtype not in HELD_BY.get(x.dtype, ()):
        return f"the cast from {x.dtype} to {inner.output.dtype} may round"
    if is_like(x, node.output):
        return x
    if "float" in inner.output.dtype and "float" not in node.output.dtype and node.output.dtype != "bool":
        return "the conversion of out-of-range numbers depends on the source dtype"
    made = g.op(CAST, self=x, dtype=Dtype(node.output.dtype))
    return made if is_like(made, node.output) else None


casts = rule_pass(
    "casts",
    "Write every cast as aten.to.dtype; remove casts that change nothing or are undone.",
    [written_as_cast, one_cast],
)
