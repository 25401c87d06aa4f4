"""The journal: which rule changed what, and why one declined; whoever wants to know opens one.

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
class Opened:
    """Calls of modules and of torch functions of which a part became something else."""

    modules: set[str] = field(default_factory=set)
    functions: set[Origin] = field(default_factory=set)


@dataclass
class Journal:
    """Entries in the order of events; the same decline is written once."""

    changes: list[Change] = field(default_factory=list)
    declined: dict[Decline, None] = field(default_factory=dict)
    opened: dict[IR, Opened] = field(default_factory=dict)

    def changed(self, rule: str, node: str, origins: tuple[str, ...] = ()) -> None:
        self.changes.append(Change(rule, node, origins))

    def merged(self, ir: IR, nodes: Sequence[OpNode]) -> None:
        """Note that nodes of a graph became others together: calls that hold only some of them have lost a part."""
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
