"""Size propagation: evaluate constant size expressions, and drop guards that always hold.

A guard that never holds stays: running the graph raises an error there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from torch_ir.analysis.values.rewrite_context import Knowledge
from torch_ir.errors import ExpressionError
from torch_ir.ir import IR, Expr, OpNode, TensorMeta, evaluate
from torch_ir.ir.graph.operator_sets import FLOATS
from torch_ir.ir.sizes.expressions import names_in
from torch_ir.ops.guards import DECISION, FIXED_SHAPE, FIXED_VALUE
from torch_ir.ops.torch_types import TORCH_DTYPES
from torch_ir.passes.clean.same_layout import as_sizes
from torch_ir.passes.pass_registry import apply_once, named_pass
from torch_ir.rewrite import Builder, op, rule
from torch_ir.rewrite.builder import arguments_of
from torch_ir.rewrite.change_log import current_journal

_NAME = "propagate-sizes"
_INT = ("int64", "int32", "int16", "int8", "uint8")
# Operator on two tensors -> its form with a scalar operand, and the argument that may be a scalar.
_WITH_SCALAR = {
    **{f"aten.{name}.Tensor": (f"aten.{name}.Tensor", "other") for name in ("add", "sub", "mul", "div")},
    **{f"aten.{name}.Tensor": (f"aten.{name}.Scalar", "other") for name in ("eq", "ne", "lt", "le", "gt", "ge")},
    "aten.masked_fill.Tensor": ("aten.masked_fill.Scalar", "value"),
    "aten.where.self": ("aten.where.ScalarOther", "other"),
}


@named_pass(_NAME)
def propagate_sizes(ir: IR) -> int:
    """Write known sizes and numbers as numbers, and drop guards that always hold.

    before   s = scalar_tensor(2.0);  a = mul(x, s);  b = expand(a, [-1, 4]);  assert_scalar(8 == 8)
    after                             a = mul(x, 2.0);  b = expand(a, [2, 4])
    """
    count = sum(map(_with_numbers, ir.nodes))
    return count + _without_guards(ir) + apply_once(ir, scalar_operand, slice_bounds, select_index, expand_sizes)


def _with_numbers(node: OpNode) -> int:
    """Evaluate attributes that contain no symbolic size; return how many changed."""
    attrs = {name: _computed(value) for name, value in node.attrs.items()}
    changed = sum(repr(attrs[name]) != repr(value) for name, value in node.attrs.items())
    if changed:
        node.attrs = attrs
        current_journal().changed(_NAME, node.name, node.origins)
    return changed


def _computed(value: Any) -> Any:
    if isinstance(value, list):
        return [_computed(item) for item in value]
    if not isinstance(value, Expr) or names_in(value):
        return value
    try:
        return evaluate(value, {})
    except (ExpressionError, ZeroDivisionError):
        return value


def _without_guards(ir: IR) -> int:
    know, entries = Knowledge.of(ir), current_journal()
    kept = []
    for node in ir.nodes:
        if not always_holds(node, know):
            kept.append(node)
        else:
            node.inputs = ()
            entries.changed("always-true", node.name, node.origins)
    dropped = len(ir.nodes) - len(kept)
    ir.nodes = kept
    return dropped


def always_holds(node: OpNode, know: Knowledge) -> bool:
    """Whether a node is a guard or an assertion that cannot fail."""
    holds = _GUARDS.get(node.op_type)
    return holds is not None and holds(node, know)


def _scalar_holds(node: OpNode, know: Knowledge) -> bool:
    return not isinstance(node["self"], (Expr, TensorMeta)) and bool(node["self"])


def _range_holds(node: OpNode, know: Knowledge) -> bool:
    size, low, high = node["size"], node["min"], node["max"]
    return isinstance(size, int) and (low is None or low <= size) and (high is None or size <= high)


def _truth_holds(node: OpNode, know: Knowledge) -> bool:
    value = know.value_of(node["self"])
    return value is not None and value.numel() == 1 and bool(value)


def _decision_holds(node: OpNode, know: Knowledge) -> bool:
    value = know.value_of(node["value"])
    return value is not None and value.numel() == 1 and bool(value.item() == node["assumed"])


def _shape_holds(node: OpNode, know: Knowledge) -> bool:
    """Whether the value is known and has that shape; the shape stated in the graph is what the guard checks."""
    value = know.value_of(node["value"])
    return value is not None and list(value.shape) == list(node["shape"])


def _value_holds(node: OpNode, know: Knowledge) -> bool:
    value, expected = know.value_of(node["value"]), know.value_of(node["expected"])
    return value is not None and expected is not None and torch.equal(value, expected)


def _metadata_holds(node: OpNode, know: Knowledge) -> bool:
    """Whether a tensor is known to have the metadata that the assertion demands."""
    facts = {"dtype": node["a"].dtype, "layout": "strided", "size": None, "stride": None}
    is_so = all(node.attrs.get(name) in (None, fact) for name, fact in facts.items())
    return is_so and (node.attrs.get("device") is None or know.is_home(node["device"]))


_GUARDS: dict[str, Callable[[OpNode, Knowledge], bool]] = {
    "aten._assert_scalar.default": _scalar_holds,
    "aten._assert_async.default": _truth_holds,
    "aten._assert_async.msg": _truth_holds,
    "aten._assert_tensor_metadata.default": _metadata_holds,
    "aten.sym_constrain_range.default": _range_holds,
    "aten.sym_constrain_range_for_size.default": _range_holds,
    DECISION: _decision_holds,
    FIXED_SHAPE: _shape_holds,
    FIXED_VALUE: _value_holds,
}


@rule(op(*_WITH_SCALAR))
def scalar_operand(g: Builder, node: OpNode) -> Any:
    """mul(x, constant 2.0: float32[])  ->  mul(x, 2.0)"""
    new, argument = _WITH_SCALAR[node.op_type]
    x, y = node["self"], node[argument]
    if not isinstance(x, TensorMeta) or not isinstance(y, TensorMeta) or y.shape != ():
        return None
    number = g.scalar_of(y)
    if number is None or not _promotes_alike(x, y) or not _holds(x.dtype, number):
        return None
    if x.dtype in FLOATS and not isinstance(number, complex):
        number = float(number)
    return g.op(new, **{**arguments_of(node), argument: number})


def _promotes_alike(x: TensorMeta, y: TensorMeta) -> bool:
    """Whether replacing the 0-d tensor by a scalar leaves the result dtype at that of x."""
    if x.dtype == y.dtype:
        return x.dtype in FLOATS + _INT
    return bool(x.shape) and ((x.dtype in FLOATS and y.dtype in FLOATS + _INT) or (x.dtype in _INT and y.dtype in _INT))


def _holds(dtype: str, number: Any) -> bool:
    """Whether a dtype represents a number exactly, so that the time of conversion does not matter."""
    try:
        return bool(torch.tensor(number, dtype=TORCH_DTYPES[dtype], device="cpu").item() == number)
    except (RuntimeError, ValueError):  # an integer out of range
        return False


@rule(op("aten.slice.Tensor", self="x", dim="dim", start="start", end="end", step="step"))
def slice_bounds(g: Builder, node: OpNode, x: TensorMeta, dim: int, start: Any, end: Any, step: int) -> Any:
    """slice(x: [2, 8], dim=1, start=-3, end=9223372036854775807)  ->  slice(x, dim=1, start=5, end=8)"""
    size = x.shape[dim] if x.shape else None
    if not isinstance(size, int) or isinstance(start, Expr) or isinstance(end, Expr):
        return None
    first, stop, _ = slice(start, end).indices(size)
    if (first, stop) == (start, end):
        return None
    return g.like(node, start=first, end=max(first, stop))


@rule(op("aten.select.int", self="x", dim="dim", index="index"))
def select_index(g: Builder, node: OpNode, x: TensorMeta, dim: int, index: Any) -> Any:
    """select(x: [2, 8], dim=1, index=-1)  ->  select(x, dim=1, index=7)"""
    size = x.shape[dim]
    if isinstance(index, Expr) or index >= 0 or not isinstance(size, int):
        return None
    return g.like(node, index=index + size)


@rule(op("aten.expand.default", self="x", size="size"))
def expand_sizes(g: Builder, node: OpNode, x: TensorMeta, size: list[Any]) -> Any:
    """expand(x: [2, 1], size=[-1, 4])  ->  expand(x, size=[2, 4])"""
    return g.like(node, size=as_sizes(node.output.shape)) if -1 in size else None
