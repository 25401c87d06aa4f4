"""One call for the nodes that unpack and restore int4 values, which reads the packed bytes and writes the weight.

before   v = convert_element_type.no_fuse(p);  ...;  w = dequantize_per_channel_group(q, s)
after    w = fused.dequantize_int4(values=p, scales=s, function=@dequantize_int4)
"""

from __future__ import annotations

from typing import Any

from torch_ir.ir import IR, OpNode
from torch_ir.passes.fuse.fused_calls import Group, fuse
from torch_ir.quantization.weight_nodes import CONVERT

_NAME = "dequantize_int4"
_RESTORES = "quantized_decomposed.dequantize_per_"
_INSIDE = frozenset(
    f"aten.{name}"
    for name in (
        "mul.Scalar", "floor.default", "sub.Tensor", "stack.default", "add.Scalar", "to.dtype", "reshape.default",
    )
)  # fmt: skip


def fuse_restored(ir: IR) -> int:
    """Fuse what unpacks and restores each int4 tensor; return the number of calls made."""
    return fuse(ir, [_unpacking])


def _unpacking(node: OpNode) -> Group | None:
    """Return the nodes from the packed values to a restored tensor."""
    first = node["input"].producer if node.op_type.startswith(_RESTORES) else None
    if first is None:
        return None
    found, left = {node: None}, [first]
    start = None
    while left:
        each = left.pop()
        if each in found:
            continue
        found[each] = None
        if each.op_type == CONVERT:
            start = each
        elif each.op_type not in _INSIDE or any(tensor.producer is None for tensor in each.inputs):
            return None
        else:
            left += [tensor.producer for tensor in each.inputs if tensor.producer is not None]
    if start is None:
        return None
    reads = {"values": start["input"], "scales": node["scales"]}
    if node["zero_points"] is not None:
        reads["zero_points"] = node["zero_points"]
    attrs: dict[str, Any] = {name: node[name] for name in ("group_size", "axis") if name in node.attrs}
    return Group(_NAME, [*list(found)[:0:-1], node], reads, attrs)
