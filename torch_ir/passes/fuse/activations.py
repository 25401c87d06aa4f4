"""Recognise activations written as separate operators: GELU in both forms, SiLU, hard swish, Mish.

Every way to write one is a polynomial in x and one function: 0.5 * x + 0.5 * x * erf(x / sqrt(2)). The operators round
differently from the separate steps; in bfloat16 and float16 they round less. oneDNN's GELU returns NaN for infinity.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

from torch_ir.ir import OpNode, TensorMeta
from torch_ir.ir.graph.operator_sets import FLOATS, base_name
from torch_ir.passes.clamp_bounds import bounds_of
from torch_ir.passes.fuse.match_variants import Polynomial, between, maker, polynomial
from torch_ir.passes.pass_registry import rule_pass
from torch_ir.rewrite import Builder, op, rule

_ARITHMETIC = ("aten.mul", "aten.div", "aten.add", "aten.sub", "aten.rsub", "aten.pow", "aten.square")
_ROOT = math.sqrt(2 / math.pi)
_DEEPEST = 4


class _Form(NamedTuple):
    """An activation: `without(x) + with_curve(x) * curve(inside(x))`, and the operator for it."""

    curve: str
    inside: Polynomial
    without: Polynomial
    with_curve: Polynomial
    op_type: str
    arguments: dict[str, Any]


_FORMS = (
    _Form("erf", {1: math.sqrt(0.5)}, {1: 0.5}, {1: 0.5}, "aten.gelu.default", {"approximate": "none"}),
    _Form("tanh", {1: _ROOT, 3: _ROOT * 0.044715}, {1: 0.5}, {1: 0.5}, "aten.gelu.default", {"approximate": "tanh"}),
    _Form("sigmoid", {1: 1.0}, {}, {1: 1.0}, "aten.silu.default", {}),
    _Form("relu6", {1: 1.0, 0: 3.0}, {}, {1: 1 / 6}, "aten.hardswish.default", {}),
    _Form("hardsigmoid", {1: 1.0}, {}, {1: 1.0}, "aten.hardswish.default", {}),
    _Form("tanh of softplus", {1: 1.0}, {}, {1: 1.0}, "aten.mish.default", {}),
)


@rule(op("aten.mul.Tensor"), op("aten.div.Tensor"))
def activation(g: Builder, node: OpNode) -> Any:
    """x * sigmoid(x)  ->  silu(x);  0.5 * x * (1 + erf(x / sqrt(2)))  ->  gelu(x), and so on"""
    if node.output.dtype not in FLOATS:
        return None
    for curve, name, inner in _curves(node):
        for form in _FORMS:
            if form.curve != name:
                continue
            for x in _tensors(inner):
                if _agree(polynomial(inner, x), form.inside) and _is_product(node.output, x, curve, form):
                    g.stands_for(*between(node, [x]))
                    return g.op(form.op_type, self=x, **form.arguments)
    return None


def _curves(node: OpNode) -> Iterator[tuple[TensorMeta, str, TensorMeta]]:
    """Yield the functions in a product that have no other consumer: result, name, argument."""
    left = [(tensor, 0) for tensor in node.inputs]
    while left:
        tensor, depth = left.pop()
        if (part := maker(tensor, *_ARITHMETIC)) is not None:
            left += [(source, depth + 1) for source in part.inputs if depth < _DEEPEST]
        elif tensor.producer is not None and len(tensor._uses) == 1 and (name := _curve(tensor.producer)):
            inner = tensor.producer["self"]
            yield tensor, name, inner.producer["self"] if name == "tanh of softplus" else inner


def _curve(node: OpNode) -> str:
    """Return the name of the function that a node computes, or ""."""
    name = base_name(node.op_type).removeprefix("aten.")
    if name == "tanh" and (inner := maker(node["self"], "aten.softplus")):
        return "tanh of softplus" if (inner.attrs.get("beta"), inner.attrs.get("threshold")) == (1, 20) else ""
    if bounds_of(node) == (0, 6):
        return "relu6"
    return name if name in ("erf", "tanh", "sigmoid", "hardsigmoid") else ""


def _tensors(inner: TensorMeta) -> list[TensorMeta]:
    """Return the tensors that may be the variable of a polynomial, nearest first."""
    found = {inner: None}
    left = [(inner, 0)]
    while left:
        tensor, depth = left.pop(0)
        if depth < _DEEPEST + 1 and (node := maker(tensor, *_ARITHMETIC)):
            found.update(dict.fromkeys(node.inputs))
            left += [(source, depth + 1) for source in node.inputs]
    return list(found)


def _is_product(result: TensorMeta, x: TensorMeta, curve: TensorMeta, form: _Form) -> bool:
    """Whether a result is `without + with_curve * curve`, checked as polynomials of x at three values of the curve."""
    if result.shape != x.shape or result.dtype != x.dtype or curve.dtype != x.dtype:
        return False
    zero, one = (polynomial(result, x, known={curve: value}) for value in (0.0, 1.0))
    if zero is None or one is None:
        return False
    slope = {power: one.get(power, 0.0) - zero.get(power, 0.0) for power in {**one, **zero}}
    two = polynomial(result, x, known={curve: 2.0})
    doubled = {power: zero.get(power, 0.0) + 2 * factor for power, factor in slope.items()}
    return _agree(zero, form.without) and _agree(slope, form.with_curve) and _agree(two, doubled)


def _agree(one: Polynomial | None, other: Polynomial) -> bool:
    """Whether two polynomials are equal to float32 precision."""
    if one is None:
        return False
    return all(math.isclose(one.get(p, 0.0), other.get(p, 0.0), rel_tol=2e-7, abs_tol=1e-12) for p in {**one, **other})


activations = rule_pass("activations", "Replace activations written as separate operators by one.", [activation])
