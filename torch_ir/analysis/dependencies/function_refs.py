"""Functions that nodes reference, and functions that none does."""

from __future__ import annotations

from collections.abc import Iterator

from torch_ir.ir import IR, FunctionRef, OpNode


def function_pairs(one: OpNode, other: OpNode) -> Iterator[tuple[str, str]]:
    """Yield pairs of functions that two nodes reference at the same attribute."""
    for mine, its in zip(_references(one), _references(other), strict=False):
        if mine[0] == its[0]:  # otherwise the attribute names differ, which is reported elsewhere
            yield str(mine[1]), str(its[1])


def unnamed_functions(ir: IR) -> set[str]:
    """Return the functions that no node references: the further entry points of a file."""
    return ir.functions.keys() - {name for node in ir.nodes for _, name in _references(node)}


def _references(node: OpNode) -> list[tuple[str, FunctionRef]]:
    """Return the functions that a node references, with the attribute name; also inside lists."""
    found = []
    for name in sorted(node.attrs):
        waiting = [node.attrs[name]]
        while waiting:
            value = waiting.pop()
            waiting += value if isinstance(value, (list, tuple)) else ()
            found += [(name, value)] if isinstance(value, FunctionRef) else []
    return found
