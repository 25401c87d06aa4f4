"""Target: the user's own IR as a table of handlers, one per operator, module class, torch function or pattern.

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
from torch_ir.rewrite import Pattern
from torch_ir.targets.handler_names import check_key, check_unused
from torch_ir.targets.handlers import Key, Rule, asked_names, is_same, key_of, place_of, same_operator
from torch_ir.targets.lowered import Lowered
from torch_ir.targets.lowering import Lowering, tell

F = TypeVar("F", bound=Callable[..., Any])


class Target:
    """Somebody's own IR: what can be lowered to it, and how."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._named: dict[str, Rule] = {}
        self._functions: dict[str, dict[str, None]] = {}  # from an operator to the torch functions called like it
        self._patterns: list[Rule] = []

    def lowers(self, *what: str | type | Callable[..., Any] | Pattern) -> Callable[[F], F]:
        """Decorate `f(node) -> anything`: it lowers what is named here.

        That is an operator (`"aten.conv2d.default"`, or `"aten.conv2d"` for every overload), a module class or a torch
        function, as the object itself or as its full name in text, or a pattern of several nodes. A handler gets the
        node, and by name whatever else its signature asks for: what its pattern captures, or `body`, the graph inside a
        module or function. It declines by returning `Declined("why")` or None.
        """
        if not what:
            raise RegistryError(f"{self.name}.lowers() is told nothing to lower; name an operator, module or pattern")
        keys = [key_of(thing) for thing in what]

        def keep(handler: F) -> F:
            for key in keys:
                self._keep(Rule(key, handler, asked_names(handler, key)))
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
        """The patterns that have a handler, those of more nodes first."""
        pairs = [(rule.key, rule) for rule in self._patterns if isinstance(rule.key, Pattern)]
        return tuple(sorted(pairs, key=lambda pair: -pair[0].size))

    @property
    def _keys(self) -> tuple[Key, ...]:
        return (*self._named, *(rule.key for rule in self._patterns))

    def rules_for(self, op_type: str) -> Iterator[Rule]:
        """The handlers for a node of that type: of the torch function, of the operator, of the operator in any form."""
        base = op_type.rpartition(".")[0]
        for name in (*self._functions.get(base, ()), op_type, base):
            if name in self._named:
                yield self._named[name]

    def handles(self, op_type: str) -> bool:
        """Whether any handler is registered for a node of that type alone."""
        return next(self.rules_for(op_type), None) is not None

    def lower(self, ir: IR, decompose: bool = False, log: Callable[[str], object] | None = None) -> Lowered:
        """The graph as layers of this target; what no handler takes becomes a placeholder, and no handler can fail it.

        A handler for an operator that torch does not have is a RegistryError: here, or where it is registered if torch
        is loaded by then.

        With `decompose`, a node without a handler becomes several layers if torch can split it into operators that all
        have one. `log` gets a line per layer; without it the lines go to the logger `torch_ir.targets`.
        """
        for key in self._keys:
            check_key(key, self.name)
        lowering = Lowering(self, ir)
        if decompose:
            from torch_ir.targets.splitting import Splitter  # needs torch

            lowered = lowering.run(Splitter(lowering.ir))
        else:
            lowered = lowering.run()
        if lowered.missing:
            used = {node.op_type for node in ir.all_nodes()}
            check_unused(self._keys, used, [row.op_type for row in lowered.missing], self.name)
        tell(lowered.layers, log)
        return lowered

    def __repr__(self) -> str:
        return f"Target({self.name!r}, {len(self._named) + len(self._patterns)} handlers)"
