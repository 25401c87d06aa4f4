"""Check that op_types are registered operators or plain names (R9), and that none reaches outside the graph (R10).

aten.relu.default            registered
torch.nn.Linear              a call of a function of the graph, or a layer without a body
mylib.attention.default      opaque: drawn, listed and lowered, but not run unless it is registered
aten.relu.default.__class__  refused
"""

from __future__ import annotations

import re
from functools import cached_property

from torch_ir.errors import GraphError, did_you_mean
from torch_ir.ir import OpNode
from torch_ir.ir.graph.operator_sets import base_name
from torch_ir.ops.effects import is_forbidden
from torch_ir.ops.schema import Operator, find_operator, overloads_by_name
from torch_ir.safety.torch_versions import Changes

_PIECE = re.compile(r"(.*)\[\d{1,9}\]")  # one of several runs of a layer: `torch.nn.Linear[1]`
_INNER = frozenset(("<locals>", "<lambda>"))  # of a class defined inside a function


class Operators:
    """Resolves the op_types of one graph; each is looked up once."""

    def __init__(self, changes: Changes) -> None:
        self._changes = changes
        self._found: dict[tuple[str, bool], Operator | None] = {}

    @cached_property
    def _overloads(self) -> dict[str, list[str]]:
        return overloads_by_name()

    def of(self, node: OpNode) -> Operator | None:
        """Return the registered operator of a node; None for a call, a layer, or an unknown operator."""
        key = (node.op_type, node.is_call or node.is_layer)
        if key not in self._found:
            self._found[key] = self._looked_up(node, is_label=key[1])
        return self._found[key]

    def _looked_up(self, node: OpNode, is_label: bool) -> Operator | None:
        op_type = node.op_type
        operator = find_operator(op_type)
        if is_forbidden(op_type) and (operator is not None or not is_label):
            raise _error(node, f"{op_type!r:.80} reaches outside the graph and is not allowed", "R10")
        if operator is not None:
            return operator
        if not _is_name(op_type, is_label):
            raise _error(node, f"{op_type!r:.80} is not a valid operator name")
        base = base_name(op_type)
        known = self._overloads.get(base)
        if known is not None:
            why = f"{op_type!r:.80} is not an overload of {base}"
            if not self._changes.excuse(node, why):
                raise _error(node, why + (did_you_mean(op_type, known) or f"; it has {', '.join(sorted(known)[:5])}"))
        elif not is_label:
            self._changes.note_unknown(node)
        return None


def _error(node: OpNode, message: str, rule: str = "R9") -> GraphError:
    return GraphError(message, "$.op_type", rule=rule, node=node.name)


def _is_name(op_type: str, is_label: bool) -> bool:
    """Whether a text is a valid operator name, or with `is_label`, a valid function or class name."""
    piece = _PIECE.fullmatch(op_type) if is_label else None
    parts = (piece[1] if piece else op_type).split(".")
    if is_label:
        return all(part.isidentifier() or part in _INNER for part in parts)
    return all(part.isidentifier() and not (part.startswith("__") and part.endswith("__")) for part in parts)
