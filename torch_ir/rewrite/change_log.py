"""The journal: which rule changed what, and why one declined.

with journal() as entries:
    dead_code(ir)
entries.changes, entries.declined
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field

from torch_ir.ir import IR, OpNode, Origin
from torch_ir.ir.graph.origins import call_of, modules_around


@dataclass(frozen=True)
class Change:
    """A change: the rule, the node, the captured nodes involved, and how NaN and infinities may differ after it."""

    rule: str
    node: str
    origins: tuple[str, ...] = ()
    non_finite: tuple[str, ...] = ()


@dataclass(frozen=True)
class Decline:
    """A rule that declined, and why."""

    rule: str
    node: str
    why: str


@dataclass
class Opened:
    """Calls of modules and torch functions of which a part was replaced."""

    modules: set[str] = field(default_factory=set)
    functions: set[Origin] = field(default_factory=set)


@dataclass
class Journal:
    """Entries in order of events; equal declines are recorded once."""

    changes: list[Change] = field(default_factory=list)
    declined: dict[Decline, None] = field(default_factory=dict)
    opened: dict[IR, Opened] = field(default_factory=dict)

    def changed(self, rule: str, node: str, origins: tuple[str, ...] = (), non_finite: tuple[str, ...] = ()) -> None:
        self.changes.append(Change(rule, node, origins, non_finite))

    def merged(self, ir: IR, nodes: Sequence[OpNode]) -> None:
        """Record that nodes were replaced together: calls that contain only some of them are no longer whole."""
        if len({node.origin for node in nodes}) < 2:
            return
        around = [set(modules_around(node.origin.module)) for node in nodes]
        opened = self.opened.setdefault(ir, Opened())
        opened.modules |= around[0].union(*around) - around[0].intersection(*around)
        calls = {call_of(node.origin) for node in nodes}
        opened.functions |= {call for call in calls if call.function and len(calls) > 1}

    def decline(self, rule: str, node: str, why: str) -> None:
        self.declined[Decline(rule, node, why)] = None


_open: ContextVar[Journal | None] = ContextVar("journal", default=None)


@contextmanager
def journal() -> Iterator[Journal]:
    """Open a new journal until the end of the block."""
    entries = Journal()
    token = _open.set(entries)
    try:
        yield entries
    finally:
        _open.reset(token)


def current_journal() -> Journal:
    """Return the open journal, or a throw-away one."""
    return _open.get() or Journal()
