"""Modules and torch functions that are no longer complete in an optimised graph.

When nodes of several modules are merged, as a convolution and its batch norm are, the merged node belongs to none of
them, and what is left of each module is incomplete. The graph then drops the class of such a module, so that no target
lowers the rest as the whole and no level shows it as a layer. These nodes are lowered by operator or pattern.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import accumulate

from torch_ir.ir import IR
from torch_ir.ir.graph.origins import call_of, joined
from torch_ir.ir.regroup.functions import called_by
from torch_ir.rewrite.change_log import Opened


def forget_opened_calls(ir: IR, opened: Mapping[IR, Opened]) -> None:
    """Drop the classes of modules, and the names of functions, of which a part was rewritten."""
    if not opened:
        return
    modules = _OpenedModules(opened)
    for path in [path for path in ir.modules if modules.has(ir, path, ir.functions)]:
        del ir.modules[path]
    called = set(called_by(ir.nodes))
    for name, body in ir.functions.items():
        if name not in called:  # an entry point: it has its own modules
            forget_opened_calls(body, opened)
    for graph in (ir, *ir.functions.values()):
        calls = opened[graph].functions if graph in opened else set()
        for node in graph.nodes if calls else ():
            if call_of(node.origin) in calls:
                node.origin = node.origin._replace(function="")


class _OpenedModules:
    """Answers which modules lost a part to a rewrite, including those inside functions; answers are cached.

    Queried by path: the number of call paths grows exponentially with nested functions, the number of names does not.
    """

    def __init__(self, opened: Mapping[IR, Opened]) -> None:
        self._opened = opened
        self._known: dict[tuple[IR, str], bool] = {}
        self._bodies: dict[IR, dict[str, dict[IR, None]]] = {}

    def has(self, ir: IR, path: str, functions: Mapping[str, IR]) -> bool:
        """Return whether a rewrite replaced part of the module at this path."""
        if (ir, path) not in self._known:
            self._known[ir, path] = (ir in self._opened and path in self._opened[ir].modules) or any(
                self.has(body, path[len(outer) :].removeprefix("."), {**functions, **body.functions})
                for outer in _enclosing(path)
                for body in self._called(ir, functions).get(outer, ())
            )
        return self._known[ir, path]

    def _called(self, ir: IR, functions: Mapping[str, IR]) -> dict[str, dict[IR, None]]:
        """Return the functions called from each module of a graph."""
        if ir not in self._bodies:
            found = self._bodies[ir] = {}
            for node in ir.nodes:
                body = functions.get(node.attrs["function"]) if node.is_call else None
                if body is not None:
                    found.setdefault(node.origin.module, {})[body] = None
        return self._bodies[ir]


def _enclosing(path: str) -> list[str]:
    """Return the paths of the enclosing modules and its own: "", "a" and "a.b" for "a.b"."""
    return ["", *accumulate(path.split("."), joined)] if path else [""]
