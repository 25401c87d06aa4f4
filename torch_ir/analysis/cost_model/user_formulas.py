"""Cost formulas of user-defined operators.

@register_cost("my_ops.blur")
def blur(node):
    \"\"\"Nine multiply-adds per pixel.\"\"\"
    return product(18, *node["image"].shape)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from torch_ir.analysis.cost_model.traffic import traffic
from torch_ir.errors import GraphError
from torch_ir.ir import OpNode
from torch_ir.ir.json.json_fields import Dim

F = TypeVar("F", bound=Callable[[OpNode], "Dim | tuple[Dim, Dim, Dim]"])
_FORMULAS: dict[str, Callable[..., Any]] = {}


def register_cost(pattern: str) -> Callable[[F], F]:
    """Decorate `f(node)`, which returns the FLOPs of a node of that operator, or FLOPs, bytes read and bytes written.

    Without bytes, each distinct input and each output counts once. It is found by full name, name without overload, or
    another overload, and replaces a built-in formula.
    """
    from torch_ir.ops.registry import register_in  # imports torch, which counting does not need

    return register_in(_FORMULAS, pattern, "cost formula")


def own_formula(op_type: str) -> Callable[..., Any] | None:
    """Return the user's formula for an operator; None if there is none."""
    if not _FORMULAS:
        return None
    from torch_ir.ops.registry import find_in

    return find_in(_FORMULAS, op_type)


def own_work(node: OpNode, formula: Callable[..., Any]) -> tuple[Dim, Dim, Dim]:
    """Return the FLOPs, bytes read and bytes written of a node by the user's formula."""
    try:
        found = formula(node)
    except Exception as error:
        raise GraphError(
            f"the cost formula of {node.op_type!r} failed for {node!r}: {type(error).__name__}: {error}"
        ) from error
    amounts = (found, *traffic(node)) if isinstance(found, (int, str)) else found
    if not isinstance(amounts, tuple) or len(amounts) != 3 or not all(map(_is_amount, amounts)):
        raise GraphError(
            f"the cost formula of {node.op_type!r} returned {found!r:.60} for {node!r}; expected FLOPs, "
            "or (FLOPs, bytes read, bytes written): integers of at least 0, or expressions of open sizes"
        )
    return amounts


def _is_amount(amount: object) -> bool:
    return isinstance(amount, str) or (isinstance(amount, int) and not isinstance(amount, bool) and amount >= 0)
