"""The journal: which rule changed what, and why one declined; whoever wants to know opens one.

with journal() as entries:
    dead_code(ir)
entries.changes, entries.declined
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Change:
    """What was done: the rule, the node that it was done at, and the captured nodes that were concerned."""

    rule: str
    node: str
    origins: tuple[str, ...] = ()


@dataclass(frozen=True)
class Decline:
    """What was not done, and why."""

    rule: str
    node: str
    why: str


@dataclass
class Journal:
    """Entries in the order of events; the same decline is written once."""

    changes: list[Change] = field(default_factory=list)
    declined: dict[Decline, None] = field(default_factory=dict)

    def changed(self, rule: str, node: str, origins: tuple[str, ...] = ()) -> None:
        self.changes.append(Change(rule, node, origins))

    def decline(self, rule: str, node: str, why: str) -> None:
        self.declined[Decline(rule, node, why)] = None


_open: ContextVar[Journal | None] = ContextVar("journal", default=None)


@contextmanager
def journal() -> Iterator[Journal]:
    """A new journal, written to until the end of the block."""
    entries = Journal()
    token = _open.set(entries)
    try:
        yield entries
    finally:
        _open.reset(token)


def current_journal() -> Journal:
    """The journal that is open, or one that nobody reads."""
    return _open.get() or Journal()
