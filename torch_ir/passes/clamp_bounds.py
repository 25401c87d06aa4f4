"""The bounds of operators that clamp, for the rules that rename, merge, recognise or pack them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch_ir.ir import OpNode
from torch_ir.ir.graph.operator_sets import base_name

_BOUNDS: Mapping[str, Callable[[OpNode], tuple[Any, Any]]] = {
    "aten.relu": lambda node: (0, None),
    "aten.relu6": lambda node: (0, 6),
    "aten.clamp": lambda node: (node["min"], node["max"]),
    "aten.clamp_min": lambda node: (node["min"], None),
    "aten.clamp_max": lambda node: (None, node["max"]),
    "aten.hardtanh": lambda node: (node["min_val"], node["max_val"]),
}
CLAMPS = tuple(f"{name}.default" for name in _BOUNDS)


def bounds_of(node: OpNode) -> tuple[Any, Any] | None:
    """Return the lower and the upper bound of a clamp, each None if absent; None for other operators."""
    found = _BOUNDS.get(base_name(node.op_type))
    return None if found is None else found(node)
