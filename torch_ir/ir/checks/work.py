"""Work: what all analyses of a file may spend together, in one command or one call of a public function.

Each call of a shape rule, decomposition or kernel has its own limits; these are the limits of their sum. A graph that a
program built has none.

    with working(ir):                # joins the work of the caller, if there is any
        with spending():             # counts CPU time against `Limits.analysis_seconds`
            made = rule(...)
        spend_tensors(len(made))     # against `Limits.derived_tensors`; both raise LimitError
"""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar, cast

from torch_ir.errors import LimitError
from torch_ir.ir.checks.limits import Limits, allow_more

_SECONDS, _TENSORS = 0.05, 64  # more for each node of a file
F = TypeVar("F", bound=Callable[..., Any])


class Work:
    """CPU seconds, and tensors that no file contains: how many are allowed, and how many were spent."""

    def __init__(self) -> None:
        self.limits = Limits()  # of the files that a command reads
        self.seconds = self._tensors = math.inf
        self.seconds_spent = self._tensors_spent = 0.0

    def admit(self, graph: Any) -> None:
        """Allow the work that a graph of a file may need; without such a graph, all work is allowed."""
        if (limits := getattr(graph, "limits", None)) is None:  # it was made by a program, or is a model
            return
        if self.seconds == math.inf:
            self.seconds, self._tensors = limits.analysis_seconds, limits.derived_tensors
        nodes = sum(len(each.nodes) for each in graph.all_graphs())
        self.seconds += nodes * _SECONDS
        self._tensors += nodes * _TENSORS

    def spend(self, seconds: float = 0.0, tensors: int = 0) -> None:
        """Count work that was done; raise LimitError if it exceeds what is allowed."""
        self.seconds_spent += seconds
        self._tensors_spent += tensors
        if self._tensors_spent > self._tensors:
            raise _too_much("derived_tensors", f"{self._tensors:.0f} tensors that are not in the file")
        if self.seconds_spent > self.seconds:
            raise self.overtime()

    def overtime(self) -> LimitError:
        """Return the error about too many seconds."""
        return _too_much("analysis_seconds", f"{self.seconds:.0f} s of CPU time")


_current: ContextVar[Work | None] = ContextVar("work", default=None)


def current_work() -> Work | None:
    """Return the work in progress; None if no file limits it."""
    work = _current.get()
    return None if work is None or work.seconds == math.inf else work


@contextmanager
def working(graph: object = None) -> Iterator[Work]:
    """Count the work of a block within the limits of a graph's file, unless a caller counts already."""
    if (outer := _current.get()) is not None:
        yield outer
        return
    work = Work()
    work.admit(graph)
    token = _current.set(work)
    try:
        yield work
    finally:
        _current.reset(token)


def bounded(function: F) -> F:
    """Let a function whose first argument is `ir` do only the work that the limits of its file allow."""

    @functools.wraps(function)
    def call(*args: Any, **options: Any) -> Any:
        with working(args[0] if args else options.get("ir")):
            return function(*args, **options)

    return cast(F, call)


@contextmanager
def spending(clock: Callable[[], float] = time.thread_time) -> Iterator[None]:
    """Count the time of a block: the CPU time of this thread, or what another clock says, for a child process."""
    if (work := current_work()) is None:
        yield
        return
    started = clock()
    try:
        yield
    finally:
        work.seconds_spent += clock() - started
    work.spend()


def spend_tensors(count: int) -> None:
    """Count tensors that were inferred or decomposed."""
    if (work := current_work()) is not None:
        work.spend(tensors=count)


def _too_much(name: str, what: str) -> LimitError:
    return LimitError(f"analysing the file takes more than {what}", "$", rule="R2", hint=allow_more(name))
