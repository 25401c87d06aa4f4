"""Check that the origins of nodes, which are shown to users, are printable (R6), and their paths not too long (R2)."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from torch_ir.errors import GraphError
from torch_ir.ir.checks.limits import allow_more
from torch_ir.ir.graph.node import OpNode, Origin

if TYPE_CHECKING:
    from torch_ir.ir.graph.graph import IR

_OUTER = re.compile(r".*@\d{1,18}")  # module path and number of the call


def check_origins(ir: IR, longest: int) -> None:
    """Raise GraphError for origins, and module tables, that are not printable, and for paths that are too long."""
    seen: set[Origin] = set()
    for index, node in enumerate(ir.nodes):
        if node.origin not in seen:
            seen.add(node.origin)
            _check_origin(node, f"$.nodes[{index}]", longest)
        if node.origins != (node.name,) and not "".join(node.origins).isprintable():
            raise _unprintable(f"$.nodes[{index}].origins", node.name)
    if not "".join([*ir.modules, *ir.modules.values()]).isprintable():
        raise _unprintable("$.modules")
    if not ir.fixed_layout.isprintable():
        raise _unprintable("$.fixed_layout")


def _check_origin(node: OpNode, path: str, longest: int) -> None:
    origin = node.origin
    if "".join((origin.module, origin.module_class, origin.source, origin.function)).isprintable() and (
        origin.call >= 0 and not origin.outer and len(origin.module) <= longest
    ):
        return
    for text in (origin.module, *origin.outer):  # the list of all modules around one takes the square of its length
        if len(text) > longest:
            message = f"a module path of {len(text)} characters is longer than {longest}"
            raise GraphError(message, f"{path}.module", rule="R2", node=node.name, hint=allow_more("name_length"))
    texts = {"module": origin.module, "module_class": origin.module_class, "source": origin.source}
    for key, text in {**texts, "function": origin.function, "outer": "".join(origin.outer)}.items():
        if not text.isprintable():
            raise _unprintable(f"{path}.{key}", node.name)
    if origin.call < 0:
        raise GraphError(f"call numbers start at 0, found {origin.call}", f"{path}.call", rule="R4", node=node.name)
    for index, text in enumerate(origin.outer):
        if not _OUTER.fullmatch(text):
            message = f"{text!r:.80} is not a module call such as 'block@2'"
            raise GraphError(message, f"{path}.outer[{index}]", rule="R4", node=node.name)


def _unprintable(path: str, node: str = "") -> GraphError:
    return GraphError("the origin of a node is not printable", path, rule="R6", node=node)
