"""Target: a user-defined IR as a table of handlers, one per operator, module class, torch function or pattern.

npu = Target("npu")

@npu.lowers("aten.conv2d.default")
def conv(node):
    return Conv(node["input"].name, node["weight"].key, stride=node["stride"])

lowered = npu.lower(ir)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from torch_ir.errors import RegistryError
from torch_ir.ir import IR
from torch_ir.ir.checks.work import working
from torch_ir.ir.graph.given_graph import require_graph
from torch_ir.rewrite import Pattern
from torch_ir.targets.handlers import (
    Key,
    Rule,
    check_key,
    check_unused,
    is_same,
    key_of,
    place_of,
    requested_names,
    same_operator,
)
from torch_ir.targets.lowered import Lowered
from torch_ir.targets.lowering import Lowering, log_layers

F = TypeVar("F", bound=Callable[..., Any])


class Target:
    """A user-defined IR and the handlers that lower to it."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._named: dict[str, Rule] = {}
        self._functions: dict[str, dict[str, None]] = {}  # operator -> torch functions of the same name
        self._patterns: list[Rule] = []

    def lowers(self, *what: str | type | Callable[..., Any] | Pattern) -> Callable[[F], F]:
        """Register the decorated `f(node) -> anything` as a handler.

        `what` is an operator (`"aten.conv2d.default"`, or `"aten.conv2d"` for every overload), a module class or torch
        function, as the object or its full name, or a pattern of several nodes. A handler receives the node, and by
        name what its signature requests: captures of its pattern, or `body`, the graph inside a module or function. It
        declines by returning `Declined("why")` or None.
        """
        if not what:
            raise RegistryError(f"{self.name}.lowers() needs an operator, module, function or pattern")
        keys = [key_of(thing) for thing in what]

        def keep(handler: F) -> F:
            for key in keys:
                self._keep(Rule(key, handler, requested_names(handler, key)))
            return handler

        return keep

    def _keep(self, rule: Rule) -> None:
        check_key(rule.key, self.name)
        held = self._patterns if isinstance(rule.key, Pattern) else self._named.values()
        holder = next((other for other in held if other.key == rule.key), None)
        if holder is not None and not is_same(holder.handler, rule.handler):
            raise RegistryError(f"{self.name} already lowers {str(rule.key)!r} with {place_of(holder.handler)}")
        if isinstance(rule.key, str):
            self._named[rule.key] = rule
            operator = same_operator(rule.key)
            if operator is not None:
                self._functions.setdefault(operator, {})[rule.key] = None
        elif holder is not None:
            self._patterns[self._patterns.index(holder)] = rule
        else:
            self._patterns.append(rule)

    @property
    def patterns(self) -> tuple[tuple[Pattern, Rule], ...]:
        """The patterns with a handler, larger ones first."""
        pairs = [(rule.key, rule) for rule in self._patterns if isinstance(rule.key, Pattern)]
        return tuple(sorted(pairs, key=lambda pair: -pair[0].size))

    @property
    def _keys(self) -> tuple[Key, ...]:
        return (*self._named, *(rule.key for rule in self._patterns))

    def rules_for(self, op_type: str) -> Iterator[Rule]:
        """Yield the handlers for a node type: of the torch function, the operator, the operator without overload."""
        base = op_type.rpartition(".")[0]
        for name in (*self._functions.get(base, ()), op_type, base):
            if name in self._named:
                yield self._named[name]

    def handles(self, op_type: str) -> bool:
        """Whether a handler is registered for this node type."""
        return next(self.rules_for(op_type), None) is not None

    def lower(self, ir: IR, decompose: bool = False, log: Callable[[str], object] | None = None) -> Lowered:
        """Lower a graph to layers of this target; nodes that no handler lowers become placeholders.

        A handler for an operator that torch lacks is a RegistryError: here, or on registration if torch is loaded then.

        With `decompose`, a node without a handler becomes several layers if torch can decompose it into operators that
        all have one. `log` receives a line per layer; by default the lines go to the logger `torch_ir.targets`.
        """
        require_graph(ir, f"{self.name}.lower")
        for key in self._keys:
            check_key(key, self.name)
        if decompose:
            from torch_ir.targets.splitting import Splitter  # needs torch
        lowering = Lowering(self, ir)
        with working(ir):
            lowered = lowering.run(Splitter(lowering.ir) if decompose else None)
        if lowered.missing:
            used = {node.op_type for node in ir.all_nodes()}
            check_unused(self._keys, used, [row.op_type for row in lowered.missing], self.name)
        log_layers(lowered.layers, log)
        return lowered

    def __repr__(self) -> str:
        return f"Target({self.name!r}, {len(self._named) + len(self._patterns)} handlers)"
