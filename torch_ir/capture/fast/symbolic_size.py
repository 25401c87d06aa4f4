"""A symbolic size in the keys and attributes of rules; it needs neither sympy nor torch's `ShapeEnv`."""

from __future__ import annotations

from typing import Any

import torch

from torch_ir.capture.fast.shape_tensors import NotCoveredError

WRAPPED: dict[type, Any] = {int: torch.SymInt, float: torch.SymFloat, bool: torch.SymBool}
SYMBOLIC = tuple(WRAPPED.values())
KEPT = "a size that was kept from an earlier capture"


class Size:
    """A symbolic number of one space; equal numbers are the same object."""

    __slots__ = ("constant", "expr", "hint", "is_sum", "kind", "symbols")

    def __init__(self, expr: Any, kind: type, hint: Any, constant: Any, is_sum: bool) -> None:
        self.expr = expr
        self.kind = kind
        self.hint = hint
        self.constant = constant
        self.is_sum = is_sum
        self.symbols: frozenset[Any] = frozenset(getattr(expr, "free_symbols", ()))


def live_size(number: Any) -> Size:
    """Return the size of a number of the model; the number must belong to the current run."""
    node = number.node
    size = getattr(node, "size", None)
    if size is None and (numbers := getattr(node.shape_env, "numbers", None)) is not None:  # `DataNumbers`
        found: Size = numbers.size(node)
        return found
    if type(size) is not Size or node.sizes.is_over:
        raise NotCoveredError(KEPT)
    return size
