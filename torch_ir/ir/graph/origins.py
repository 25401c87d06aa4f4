"""Module paths of node origins: nesting, and conversion between a call and the nodes of its body."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile

from torch_ir.ir.graph.node import OpNode, Origin


def is_below(path: str, outer: str) -> bool:
    """Whether a module is nested in another one."""
    return path != outer and (not outer or path.startswith(f"{outer}."))


def is_within(path: str, module: str) -> bool:
    """Whether a path is that of a module or of something in it."""
    return path == module or is_below(path, module)


def modules_around(path: str) -> list[str]:
    """Return the paths of a module and its enclosing modules, outermost first; the model itself is ``."""
    found, end = [""], path.find(".")
    while end >= 0:
        found.append(path[:end])
        end = path.find(".", end + 1)
    return [*found, path] if path else found


def module_at(path: str, depth: int) -> str | None:
    """Return the ancestor of a module at this depth below the model; None if the module is not that deep."""
    parts = path.split(".", depth) if path else []
    return ".".join(parts[:depth]) if len(parts) >= depth else None


def call_around(origin: Origin, path: str) -> Origin:
    """Return the call of an enclosing module, without its class, or of the origin's own module."""
    if path == origin.module:
        return origin
    calls = dict(text.rsplit("@", 1) for text in origin.outer)
    outer = tuple(text for text in origin.outer if is_below(path, text.rpartition("@")[0]))
    return Origin(path, int(calls.get(path, 0)), "", origin.source, outer)


def common_origin(nodes: Sequence[OpNode]) -> Origin:
    """Return the innermost module call that contains all of these nodes; the source line is that of the last."""
    steps = zip(*(node.origin.module.split(".") for node in nodes), strict=False)
    path = [step[0] for step in takewhile(lambda step: len(set(step)) == 1, steps)]
    common = call_around(nodes[-1].origin, ".".join(path))
    while path and any(call_around(node.origin, common.module).call < common.call for node in nodes):
        path.pop()
        common = call_around(nodes[-1].origin, ".".join(path))
    return common


def origin_for(nodes: Sequence[OpNode]) -> Origin:
    """Return the origin of a node that replaces all of these: what they have in common.

    A node that replaces nodes of several modules, or of several torch functions, belongs to none of them.
    """
    if len({node.origin for node in nodes}) == 1:
        return nodes[-1].origin
    found = common_origin(nodes)
    is_one_function = len({node.origin.function for node in nodes}) == 1
    return found if is_one_function else found._replace(function="")


def call_of(origin: Origin) -> Origin:
    """Return what the origins of all nodes of one torch function call have in common."""
    return origin._replace(source="", module_class="")


def seen_from(call: Origin, origin: Origin) -> Origin:
    """Return an origin relative to a call, as stored in the body: module paths and call numbers are relative to it.

    A call number of 0 is kept: for another call of the same module, the inner call is not the first one.
    """
    inner = [text.rsplit("@", 1) for text in origin.outer if is_below(text.rpartition("@")[0], call.module)]
    outer = tuple(f"{_without(call.module, path)}@{int(number) - call.call}" for path, number in inner)
    source = origin.source if origin.source != call.source else ""
    return Origin(_without(call.module, origin.module), origin.call - call.call, origin.module_class, source, outer)


def placed_in(call: Origin, origin: Origin) -> Origin:
    """Return the absolute origin of a node in one call of a body; the inverse of `seen_from`."""
    module = joined(call.module, origin.module)
    inner = [text.rsplit("@", 1) for text in origin.outer]
    own = (f"{call.module}@{call.call}",) if call.call and origin.module else ()
    shifted = ((path, int(number) + call.call) for path, number in inner)
    outer = tuple(f"{joined(call.module, path)}@{number}" for path, number in shifted if number)
    source = origin.source or call.source
    return Origin(module, origin.call + call.call, origin.module_class, source, (*call.outer, *own, *outer))


def _without(outer: str, path: str) -> str:
    return path[len(outer) :].removeprefix(".")


def joined(outer: str, path: str) -> str:
    """Return the path of a nested module from its path inside the outer one."""
    return ".".join(filter(None, (outer, path)))
