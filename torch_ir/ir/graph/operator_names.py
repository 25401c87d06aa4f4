"""Check the names of operators and arguments that rules, patterns, targets and contracts are written with.

Which names there are is known to torch, and nothing here imports it: `torch_ir.ops` installs the check when it is
imported. Until then names pass, and are checked when a rule or a target is first applied.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from torch_ir.errors import RegistryError

# Returns what is wrong with a call of one of some operators with arguments of these names; empty if nothing is.
Objection = Callable[[Collection[str], Collection[str]], str]
_installed: list[Objection] = []


def install_check(objection: Objection) -> None:
    """Check names with this function from now on."""
    _installed[:] = [objection]


def check_call(op_types: Collection[str], arguments: Collection[str], place: str) -> bool:
    """Raise RegistryError for an operator or argument that torch does not have; return whether that could be told."""
    for objection in _installed:
        if message := objection(op_types, arguments):
            raise RegistryError(f"{place}: {message}")
    return bool(_installed)
