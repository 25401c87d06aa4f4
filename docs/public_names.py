"""Griffe extension: `torch_ir.cost` is a function, not a module of the same name."""

from __future__ import annotations

from typing import Any

from griffe import Extension, GriffeLoader, Module


class PublicNames(Extension):
    """Resolve each public name of the package to its object, even if its module has the same name."""

    def on_package(self, *, pkg: Module, loader: GriffeLoader, **kwargs: Any) -> None:
        aliases = [member for member in pkg.members.values() if member.is_alias]
        for alias in aliases:
            if alias.target_path.startswith(f"{pkg.name}.") and alias.name in alias.target.members:
                alias.target = alias.target.members[alias.name]
