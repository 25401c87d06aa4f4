"""Match variants of an expression: both operand orders, optional casts, powers, polynomials."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from torch_ir.ir import OpNode, TensorMeta
from torch_ir.ir.graph.operator_sets import base_name
from torch_ir.passes.clean.canonical_arithmetic import is_number

CASTS = ("aten.to", "aten._to_copy", "aten.type_as", "prims.convert_element_type")
Polynomial = dict[int, float]  # power -> factor
_DEEPEST = 6
_NOTHING: Mapping[TensorMeta, float] = {}


def maker(value: Any, *names: str) -> OpNode | None:
    """Return the node whose first output this is, if its operator, without overload, is one of these."""
    node = value.producer if isinstance(value, TensorMeta) and value.index == 0 else None
    return node if node is not None and base_name(node.op_type) in names else None


def orders(node: OpNode | None) -> Iterator[tuple[Any, Any]]:
    """Yield the operands of a sum or product in both orders; nothing for a sum with alpha."""
    if node is not None and node.attrs.get("alpha", 1) == 1:
        yield node["self"], node["other"]
        yield node["other"], node["self"]


def uncast(tensor: TensorMeta) -> TensorMeta:
    """Return the input of a cast; any other tensor as it is."""
    cast = maker(tensor, *CASTS)
    return tensor if cast is None else cast.inputs[0]


def between(last: OpNode, reads: Iterable[TensorMeta]) -> list[OpNode]:
    """Return the nodes that compute a node from these tensors, itself included, in topological order."""
    given = set(reads)
    found: dict[OpNode, None] = {}
    left = [(last, False)]
    while left:
        node, is_ready = left.pop()
        if is_ready:
            found[node] = None
        elif node not in found:
            left.append((node, True))
            left += [(t.producer, False) for t in node.inputs if t not in given and t.producer is not None]
    return list(found)


def polynomial(
    value: Any, x: TensorMeta, depth: int = 0, known: Mapping[TensorMeta, float] = _NOTHING
) -> Polynomial | None:
    """Return a value as a polynomial of x, or None if it is not one: `0.5 * x * (1 + x)` is `{1: 0.5, 2: 0.5}`.

    Tensors in `known` are replaced by these numbers.
    """
    if value is x:
        return {1: 1.0}
    if isinstance(value, TensorMeta) and value in known:
        return {0: known[value]}
    if is_number(value):
        return {0: float(value)}
    node = maker(value, "aten.mul", "aten.div", "aten.add", "aten.sub", "aten.rsub", "aten.pow", "aten.square")
    if node is None or depth > _DEEPEST or value.dtype != x.dtype:
        return None
    name = base_name(node.op_type)
    if name in ("aten.pow", "aten.square"):
        base, power = polynomial(node["self"], x, depth + 1, known), 2 if name == "aten.square" else node["exponent"]
        return _power(base, power) if base is not None and power in (2, 3) else None
    one, other = polynomial(node["self"], x, depth + 1, known), polynomial(node["other"], x, depth + 1, known)
    if one is None or other is None or node.attrs.get("alpha", 1) != 1 or node.attrs.get("rounding_mode") is not None:
        return None
    if name == "aten.mul":
        return _product(one, other)
    if name == "aten.div":
        return {power: factor / other[0] for power, factor in one.items()} if [*other] == [0] and other[0] else None
    signs = {"aten.add": (1, 1), "aten.sub": (1, -1), "aten.rsub": (-1, 1)}[name]
    return _sum(one, signs[0], other, signs[1])


def _sum(one: Polynomial, first: int, other: Polynomial, second: int) -> Polynomial:
    powers = dict.fromkeys((*one, *other))
    return {power: first * one.get(power, 0.0) + second * other.get(power, 0.0) for power in powers}


def _product(one: Polynomial, other: Polynomial) -> Polynomial:
    found: Polynomial = {}
    for power, factor in one.items():
        for further, second in other.items():
            found[power + further] = found.get(power + further, 0.0) + factor * second
    return found


def _power(base: Polynomial, power: int) -> Polynomial:
    return base if power == 1 else _product(base, _power(base, power - 1))
