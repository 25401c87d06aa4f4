"""Linear layers of a few rows read their weights as they are stored: in float32, bfloat16, int8 or int4.

before   w = dequantize_per_channel_group(q, s);  y = linear(x, w)
after    y = weight_product(x, q, s)

Restoring a quantised weight takes longer than a product with few rows. The operator reads the tensors that graphs with
more rows restore, so that both share them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from torch_ir.backends.cpu.weight_product import COLUMNS, FORMATS, OPERATOR, kernels
from torch_ir.ir import IR, Dtype, OpNode, TensorMeta
from torch_ir.ops.torch_types import dtype_name
from torch_ir.passes.pass_registry import apply_once
from torch_ir.rewrite import Builder, Match, Pattern, match, op, rule

_LINEAR = "aten.linear.default"
_FLOATS = ("float32", "bfloat16")
_STORED = tuple(map(dtype_name, FORMATS))
_MOST_ROWS = 8
_LEAST = 1 << 20  # elements of a weight in float: smaller ones may stay in the cache of the processor

_Q = "quantized_decomposed."
_RESTORED = (
    op(f"{_Q}dequantize_per_channel.default", input="values", scales="scales", zero_points="zeros", axis=0),
    op(f"{_Q}dequantize_per_channel_group.default", input="values", scales="scales", zero_points="zeros"),
)
_WIDE = op(f"{_Q}convert_element_type.no_fuse", input="packed").when(dtype=Dtype("float32")).named("wide")
_HIGH = op("aten.floor.default", self=op("aten.mul.Scalar", self=_WIDE, other=1 / 16)).named("high")
_LOW = op("aten.sub.Tensor", self=_WIDE, other=_HIGH, alpha=16)
_BOTH = op("aten.stack.default", **{"tensors.0": _LOW, "tensors.1": _HIGH}, dim=-1)
_INT4 = {  # what unpacks two int4 from each byte, by the number that was added to them
    8: op("aten.reshape.default", self=op("aten.to.dtype", self=op("aten.add.Scalar", self=_BOTH, other=-8, alpha=1))),
    0: op("aten.reshape.default", self=op("aten.to.dtype", self=_BOTH)),
}


@dataclass(frozen=True)
class _Stored:
    """A weight as it is stored: `(values - offset - zero_points) * scales`."""

    values: TensorMeta
    scales: TensorMeta | None = None
    zero_points: TensorMeta | None = None
    offset: int = 0


def with_stored_weights(ir: IR) -> IR:
    """Return a copy in which such layers read stored weights."""
    copy = ir.clone()
    if kernels():
        apply_once(copy, _few_rows)
    return copy.check()


@rule(op(_LINEAR, input="x", weight="weight", bias="bias"))
def _few_rows(g: Builder, node: OpNode, x: TensorMeta, weight: TensorMeta, bias: TensorMeta | None) -> object:
    """linear(x, restored(q, s), b)  ->  weight_product(x, q, s) + b"""
    if not g.is_home("cpu") or not x.is_static or not node.output.is_static:
        return "it is not on a CPU, or its sizes vary"
    if x.dtype not in _FLOATS or weight.dtype != x.dtype or len(weight.shape) != 2:
        return "it is not computed in float32 or bfloat16"
    if math.prod(map(int, x.shape[:-1])) not in range(1, _MOST_ROWS + 1):
        return f"it has no row, or more than {_MOST_ROWS}"
    stored = _stored(g, weight)
    if isinstance(stored, str):
        return stored
    wide = x if x.dtype == "float32" else g.op("aten.to.dtype", self=x, dtype=Dtype("float32"))
    made = g.op(
        OPERATOR, rows=wide, matrix=stored.values, scales=stored.scales, zero_points=stored.zero_points,
        offset=stored.offset,
    )  # fmt: skip
    if bias is not None:
        made = g.op("aten.add.Tensor", self=made, other=bias)
    return made if x.dtype == "float32" else g.op("aten.to.dtype", self=made, dtype=Dtype(x.dtype))


def _stored(g: Builder, weight: TensorMeta) -> _Stored | str:
    """Return what a weight is restored from, or why the operator cannot read it."""
    count, width = map(int, weight.shape)
    if g.is_weight(weight):
        if count * width < _LEAST:
            return "its weight is small"
        found, groups = _Stored(weight), count
    else:
        restored = _first(_RESTORED, weight)
        if restored is None or restored["scales"].dtype != "float32":
            return "its weight is not restored from integers"
        values, offset = _integers(restored["values"])
        if int(values.shape[-1]) * (2 if values.dtype == "uint8" else 1) != width:
            return "its integers are not stored row by row"
        groups = math.prod(map(int, restored["scales"].shape))
        zeros = restored["zeros"]
        is_shifted = zeros is not None and g.scalar_of(zeros) != 0
        found = _Stored(values, restored["scales"], zeros if is_shifted else None, offset)
    read = [tensor for tensor in (found.values, found.scales, found.zero_points) if tensor is not None]
    if found.values.dtype not in _STORED or not all(g.is_weight(each) and each.stride is None for each in read):
        return "its weight is computed in every run, or not stored row by row"
    if width % COLUMNS or (count * width // groups) % COLUMNS:
        return f"its rows or groups are not multiples of {COLUMNS} elements"
    return found


def _integers(values: TensorMeta) -> tuple[TensorMeta, int]:
    """Return the stored integers, and what was added to them."""
    for offset, pattern in _INT4.items():
        found = _first((pattern,), values)
        if found is not None and found["packed"].dtype == "uint8" and len(found["packed"].shape) == 2:
            return found["packed"], offset
    return values, 0


def _first(patterns: Iterable[Pattern], tensor: TensorMeta) -> Match | None:
    """Return the first match with the producer of a tensor."""
    found = (match(each, tensor.producer) for each in patterns if tensor.producer is not None)
    return next((each for each in found if each is not None), None)
