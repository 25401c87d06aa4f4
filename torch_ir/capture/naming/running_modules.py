"""The running module call, with the path that torch.export writes into `nn_module_stack`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from functools import cached_property
from typing import Any

from torch import nn

from torch_ir.capture.instrument import intercepted
from torch_ir.capture.naming.module_accesses import ModuleAccesses
from torch_ir.capture.program.provenance import class_name
from torch_ir.capture.walk import walk
from torch_ir.ir import Origin
from torch_ir.ops.torch_internals import MODULE_CALL, compiled_call


class Scope:
    """One call of a module, inside another."""

    def __init__(self, module: str, call: int, kind: str, outside: Scope | None) -> None:
        self.module = module
        self.call = call
        self.kind = kind  # the full name of its class
        self.outside = outside
        # enclosing calls that are not the first of their module, outermost first
        self.outer: tuple[str, ...] = ()
        if outside is not None:
            self.outer = (*outside.outer, f"{outside.module}@{outside.call}") if outside.call else outside.outer

    def around(self) -> Iterator[Scope]:
        """Yield this call and the enclosing ones, innermost first."""
        scope: Scope | None = self
        while scope is not None:
            yield scope
            scope = scope.outside

    def origin(self, line: str) -> Origin:
        return Origin(self.module, self.call, self.kind.rpartition(".")[2], line, self.outer)

    @cached_property
    def stack(self) -> Mapping[str, tuple[str, str]]:
        """Return torch.export's `nn_module_stack`: the outermost call first."""
        scopes = reversed(list(self.around()))
        return {
            f"{scope.module}@{scope.call}" if scope.call else scope.module: (scope.module, scope.kind)
            for scope in scopes
        }


class ModuleCalls:
    """Tracks which call of which module is running."""

    def __init__(self, model: nn.Module) -> None:
        self.scope: Scope | None = None
        self._calls: dict[str, int] = {}
        self._paths: dict[nn.Module, list[str]] = {}
        for path, module in walk(model):
            self._paths.setdefault(module, []).append(path)
        is_shared = any(len(paths) > 1 for paths in self._paths.values())
        self._accesses = ModuleAccesses(self._paths) if is_shared else None

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Track the calls that this thread makes."""

        def call(original: Callable[..., Any], module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            outside = self.scope
            self.scope = self._entered(module, outside)
            try:
                return original(module, *args, **kwargs)
            finally:
                self.scope = outside

        accesses = nullcontext() if self._accesses is None else self._accesses.watched()
        # torch's own hooks for all modules take far longer, and so does a change of `__call__`, after which Python
        # updates every subclass of Module
        is_compiled = any(compiled_call(module) is not None for module in self._paths)
        with accesses, intercepted(nn.Module, "__call__" if is_compiled else MODULE_CALL, call):
            yield

    def _entered(self, module: nn.Module, outside: Scope | None) -> Scope | None:
        paths = self._paths.get(module)
        if paths is None:  # created in forward, so it has no path
            return outside
        accesses, outer = self._accesses, None if outside is None else outside.module
        path = paths[0] if accesses is None else accesses.enter(module, outer)
        number = self._calls.get(path, 0)
        self._calls[path] = number + 1
        return Scope(path, number, class_name(type(module)), outside)
