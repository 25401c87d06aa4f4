"""The target argument of a verb: a Target of the user, or the contract of one."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch_ir.targets import Contract, Target


def load_target(text: str) -> Target:
    """Return the Target that `file.py:name` names."""
    from torch_ir.cli.models.factory import load_factory
    from torch_ir.errors import CommandError
    from torch_ir.targets import Target

    if ":" not in text:
        raise CommandError(f"{text!r} does not name a target; write it as file.py:name or package.module:name")
    found = load_factory(text)
    if not isinstance(found, Target):
        raise CommandError(f'{text} is not a Target, but {found!r:.60}; make one with torch_ir.Target("name")')
    return found


def load_target_or_contract(text: str) -> Target | Contract:
    """Return the Target that `file.py:name` names, or the contract in a .toml or .json file."""
    from torch_ir.targets import Contract

    return Contract.load(text) if text.endswith((".toml", ".json")) or ":" not in text else load_target(text)
