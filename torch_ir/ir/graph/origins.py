"""Origins of nodes among modules: what lies inside what, and how a call and the nodes of its body share a path."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile

from torch_ir.ir.graph.node import OpNode, Origin


def is_below(path: str, outer: str) -> bool:
    """Whether a module lies inside another one."""
    return path != outer and (not outer or path.startswith(f"{outer}."))


def modules_around(path: str) -> list[str]:
    """The paths of a module and of all modules around it, outermost first: the model itself is ``."""
    parts = path.split(".") if path else []
    return [".".join(parts[:count]) for count in range(len(parts) + 1)]


def module_at(path: str, depth: int) -> str | None:
    """The path of the module so many levels below the model, on the way to a module; None where that lies above."""
    parts = path.split(".", depth) if path else []
    return ".".join(parts[:depth]) if len(parts) >= depth else None


def call_around(origin: Origin, path: str) -> Origin:
    """The call of a module around an origin, or of the module itself; the class of a module around is not known."""
    if path == origin.module:
        return origin
    calls = dict(text.rsplit("@", 1) for text in origin.outer)
    outer = tuple(text for text in origin.outer if is_below(path, text.rpartition("@")[0]))
    return Origin(path, int(calls.get(path, 0)), "", origin.source, outer)


def common_origin(nodes: Sequence[OpNode]) -> Origin:
    """The innermost call of a module that all of these nodes come from; the source line is that of the last."""
    steps = zip(*(node.origin.module.split(".") for node in nodes), strict=False)
    path = [step[0] for step in takewhile(lambda step: len(set(step)) == 1, steps)]
    common = call_around(nodes[-1].origin, ".".join(path))
    while path and any(call_around(node.origin, common.module).call < common.call for node in nodes):
        path.pop()
        common = call_around(nodes[-1].origin, ".".join(path))
    return common


def origin_for(nodes: Sequence[OpNode]) -> Origin:
    """The origin of one node that takes the place of all of these: what they have in common, and no more.

    A node that takes the place of nodes of several modules, or of several torch functions, belongs to none of them.
    """
    if len({node.origin for node in nodes}) == 1:
        return nodes[-1].origin
    found = common_origin(nodes)
    is_one_function = len({node.origin.function for node in nodes}) == 1
    return found if is_one_function else found._replace(function="")


def call_of(origin: Origin) -> Origin:
    """What all nodes of one call of a torch function have in common."""
    return origin._replace(source="", module_class="")


def seen_from(call: Origin, origin: Origin) -> Origin:
    """An origin inside a call as the body of the call tells it: paths and numbers of calls are counted from there.

    A number of 0 is kept: in another call of the same module, that call of a module inside is not the first.
    """
    inner = [text.rsplit("@", 1) for text in origin.outer if is_below(text.rpartition("@")[0], call.module)]
    outer = tuple(f"{_without(call.module, path)}@{int(number) - call.call}" for path, number in inner)
    source = origin.source if origin.source != call.source else ""
    return Origin(_without(call.module, origin.module), origin.call - call.call, origin.module_class, source, outer)


def placed_in(call: Origin, origin: Origin) -> Origin:
    """An origin that a body tells, for the nodes of one call of it; what `seen_from` did, undone."""
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
    """The path of a module that lies inside another one, from its path there."""
    return ".".join(filter(None, (outer, path)))
