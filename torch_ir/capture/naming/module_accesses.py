"""The paths by which forward accesses shared modules: torch.export records the path of the access."""

from __future__ import annotations

from collections.abc import ItemsView, Iterator, Mapping, ValuesView
from contextlib import contextmanager
from typing import Any

from torch import nn

from torch_ir.ir.graph.origins import is_below
from torch_ir.ops.torch_internals import MODULE_TABLES, module_table

_TABLE = MODULE_TABLES[2]


class ModuleAccesses:
    """Records each access of a submodule, for models with a module that has several paths.

    A call takes the latest access that no call has taken: `self.b(self.a(x))` reads `b`, then `a`, and calls `a` first.
    """

    def __init__(self, paths: Mapping[nn.Module, list[str]]) -> None:
        self._paths = paths
        self._current: dict[nn.Module, str] = {}  # the path of the latest access or call
        self._pending: dict[nn.Module, list[str]] = {}  # accesses without a call

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Record accesses inside this context."""
        tables = {module: (module_table(module), _Table(self, module)) for module in self._paths}
        for module, (_, noting) in tables.items():
            module.__dict__[_TABLE] = noting
        try:
            yield
        finally:
            for module, (table, noting) in tables.items():
                table.clear()
                table.update(dict.items(noting))  # forward may have changed it
                if module.__dict__.get(_TABLE) is noting:
                    module.__dict__[_TABLE] = table

    def note(self, owner: nn.Module, name: str, module: nn.Module | None) -> None:
        """Record an access of `owner.name`."""
        if module is None or module not in self._paths:
            return
        path = f"{self._current.get(owner, self._paths[owner][0])}.{name}".lstrip(".")
        self._current[module] = path
        self._pending.setdefault(module, []).append(path)

    def enter(self, module: nn.Module, outside: str | None) -> str:
        """Return the path by which the module at `outside` calls another."""
        paths = self._paths[module]
        pending = self._pending.get(module, [])
        below = [path for path in pending if outside is None or is_below(path, outside)] or pending
        if len(paths) == 1:
            path = paths[0]
        elif below:
            path = below[-1]
        else:
            path = self._current.get(module, paths[0])
        if path in pending:
            del pending[len(pending) - 1 - pending[::-1].index(path)]
        self._current[module] = path
        return path


class _Table(dict[str, Any]):
    """The table of submodules of a module; records each read."""

    def __init__(self, accesses: ModuleAccesses, owner: nn.Module) -> None:
        super().__init__(module_table(owner))
        self._accesses, self._owner = accesses, owner

    def __getitem__(self, name: str) -> Any:
        module = super().__getitem__(name)
        self._accesses.note(self._owner, name, module)
        return module

    def get(self, name: str, default: Any = None) -> Any:
        try:
            return self[name]
        except KeyError:
            return default

    def values(self) -> Any:
        return ValuesView(self)

    def items(self) -> Any:
        return ItemsView(self)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return dict, (dict(dict.items(self)),)  # a copy is an ordinary table
