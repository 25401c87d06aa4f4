"""Which functions nodes name, and which no node does."""

from __future__ import annotations

from collections.abc import Iterator

from torch_ir.ir import IR, FunctionRef, OpNode


def function_pairs(one: OpNode, other: OpNode) -> Iterator[tuple[str, str]]:
    """The functions that two nodes name, side by side."""
    for mine, its in zip(_references(one), _references(other), strict=False):
        if mine[0] == its[0]:  # else the attributes differ, which is told there
            yield str(mine[1]), str(its[1])


def unnamed_functions(ir: IR) -> set[str]:
    """The functions that no node names: entry points of a file."""
    return ir.functions.keys() - {name for node in ir.nodes for _, name in _references(node)}


def _references(node: OpNode) -> list[tuple[str, FunctionRef]]:
    """The functions that a node names, each with the attribute that names it; lists may hold some, too."""
    found = []
    for name in sorted(node.attrs):
        waiting = [node.attrs[name]]
        while waiting:
            value = waiting.pop()
            waiting += value if isinstance(value, (list, tuple)) else ()
            found += [(name, value)] if isinstance(value, FunctionRef) else []
    return found
