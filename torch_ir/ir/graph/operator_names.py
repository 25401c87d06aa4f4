"""Check the names of operators and arguments in rules, patterns, targets and contracts.

Only torch has the list of names, and nothing here imports it: `torch_ir.ops` installs the check when it is imported.
Until then all names are accepted, and they are checked when a rule or target is first applied.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from torch_ir.errors import RegistryError

# Returns the problem with a call of one of these operators with arguments of these names; empty if there is none.
Objection = Callable[[Collection[str], Collection[str]], str]
_installed: list[Objection] = []


def install_check(objection: Objection) -> None:
    """Use this function to check names from now on."""
    _installed[:] = [objection]


def check_call(op_types: Collection[str], arguments: Collection[str], place: str) -> bool:
    """Raise RegistryError for an operator or argument that torch does not have; return whether a check is installed."""
    for objection in _installed:
        if message := objection(op_types, arguments):
            raise RegistryError(f"{place}: {message}")
    return bool(_installed)
