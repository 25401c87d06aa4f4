"""Calls of modules and torch functions that an optimised graph no longer has as a whole.

Where nodes of several modules become one, as a convolution and its batch norm do, that node belongs to none of them,
and whatever else a module holds is not all of it. So the graph forgets the class of such a module: no target is given a
part of it for the whole, and no level shows it as a layer. Operators and patterns lower these nodes.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch_ir.ir import IR
from torch_ir.ir.functions import called_by
from torch_ir.ir.origins import call_of, joined
from torch_ir.rewrite.journal import Opened


def forget_opened_calls(ir: IR, opened: Mapping[IR, Opened]) -> None:
    """Drop the classes of modules, and the names of functions, of which a part became something else."""
    for path in _paths(ir, opened, ir.functions):
        ir.modules.pop(path, None)
    for name, body in ir.functions.items():
        if name not in set(called_by(ir.nodes)):  # an entry point, which has modules of its own
            forget_opened_calls(body, opened)
    for graph in (ir, *ir.functions.values()):
        calls = opened[graph].functions if graph in opened else set()
        for node in graph.nodes if calls else ():
            if call_of(node.origin) in calls:
                node.origin = node.origin._replace(function="")


def _paths(ir: IR, opened: Mapping[IR, Opened], functions: Mapping[str, IR]) -> set[str]:
    """The modules of a graph that are no longer whole, those inside its functions once for each call."""
    found = set(opened[ir].modules) if ir in opened else set()
    for node in ir.nodes:
        body = functions.get(node.attrs["function"]) if node.is_call else None
        if body is not None:
            inner = _paths(body, opened, {**functions, **body.functions})
            found |= {joined(node.origin.module, path) for path in inner}
    return found
