"""Origin of a gradient: the module call and line of the operator that a backward call differentiates.

Autograd numbers the operators of a run. The number of the running backward call is that of the forward call, so both
recorders note the place of each number, and a backward call gets the path `backward.` and the path of its forward call.
"""

from __future__ import annotations

from torch_ir.capture.naming.running_modules import Scope
from torch_ir.ir.graph.training_parts import BACKWARD
from torch_ir.ops.torch_internals import next_autograd_number, running_autograd_number


class GradientPlaces:
    """The places of the differentiable calls of a run."""

    def __init__(self) -> None:
        self._places: dict[int, tuple[Scope | None, str]] = {}
        self._mirrored: dict[Scope | None, Scope] = {}

    def place(self, scope: Scope | None, line: str) -> tuple[Scope | None, str]:
        """Return the place of a call from the scope and line that run it."""
        outer = self._backward_around(scope)
        if outer is not None:
            if scope is not outer:  # a module runs inside backward: recomputation
                scope = self._mirror(scope, outer)
            else:
                number = running_autograd_number()  # None outside of any call, as for the seed
                noted, line = self._places.get(-1 if number is None else number, (None, line))
                return self._mirror(noted, outer), line
        self._places.setdefault(next_autograd_number() - 1, (scope, line))  # autograd counts before the call
        return scope, line

    def _backward_around(self, scope: Scope | None) -> Scope | None:
        while scope is not None and scope.module != BACKWARD:
            scope = scope.outside
        return scope

    def _mirror(self, scope: Scope | None, outer: Scope) -> Scope:
        """Return the scope of a backward call; `outer` is that of all of them."""
        if scope is None or not scope.module or scope.module == BACKWARD:
            return outer
        if scope.module.startswith(f"{BACKWARD}."):
            return scope
        if scope not in self._mirrored:
            around = self._mirror(scope.outside, outer)
            self._mirrored[scope] = Scope(f"{BACKWARD}.{scope.module}", scope.call, f"{scope.kind}Backward", around)
        return self._mirrored[scope]
