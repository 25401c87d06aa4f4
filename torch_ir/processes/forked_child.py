"""A forked child: it has the objects of this process without pickling them, and runs one function."""

from __future__ import annotations

import os
import re
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing import Pipe
from multiprocessing.connection import Connection

from torch_ir.processes.process_end import GRACE_SECONDS

CAN_FORK = hasattr(os, "fork")
_ENDING = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]
_TICK = 0.01  # seconds between polls
_THREADS = re.compile(".*multi-?threaded", re.IGNORECASE)


class ForkedChild:
    """A forked process that calls `run` with two pipes, its requests and its replies, and exits.

    Its standard streams are /dev/null. It never returns to the caller's code.
    """

    def __init__(self, run: Callable[[Connection, Connection], None]) -> None:
        (requests, self.requests), (self.replies, replies) = Pipe(duplex=False), Pipe(duplex=False)
        self._status: int | None = None
        self.peak_bytes = 0  # of memory, known at its end
        with _no_warning_of_threads(), signals_deferred():
            self.process = os.fork()
            if not self.process:
                _run(run, requests, replies)
        requests.close()
        replies.close()

    def poll(self) -> int | None:
        """Return the exit status, or the negative number of the signal that ended it; None while it runs."""
        return self._waited(os.WNOHANG)

    def wait(self) -> int:
        """Wait for its end; return its status."""
        status = self._waited(0)
        assert status is not None
        return status

    def stop(self) -> None:
        """End it with SIGTERM, so that it may write its stack; kill it if it still runs after some seconds."""
        os.kill(self.process, signal.SIGTERM)
        latest = time.monotonic() + GRACE_SECONDS
        while self.poll() is None and time.monotonic() < latest:
            time.sleep(_TICK)
        self.end()

    def end(self) -> int:
        """Kill it if it is running; return its status."""
        self.close()
        if self.poll() is None:
            os.kill(self.process, signal.SIGKILL)
        return self.wait()

    def close(self) -> None:
        """Close this side of the pipes."""
        self.requests.close()
        self.replies.close()

    def _waited(self, options: int) -> int | None:
        if self._status is None:
            ended, status, usage = os.wait4(self.process, options)
            if ended:
                self._status = os.waitstatus_to_exitcode(status)
                self.peak_bytes = usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024)
        return self._status


def _run(run: Callable[[Connection, Connection], None], requests: Connection, replies: Connection) -> None:
    status = 1
    try:
        accept_signals()
        null = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(null, stream)
        run(requests, replies)
        status = 0
    except SystemExit as error:
        status = error.code if isinstance(error.code, int) else int(error.code is not None)
    finally:
        os._exit(status)


@contextmanager
def signals_deferred() -> Iterator[None]:
    """Hold back signals that end a process until the end of the block; a child forked inside it calls `accept_signals`.

    Python calls functions of libraries around a fork, and prints and forgets an exception that a signal raises there.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def accept_signals() -> None:
    """Receive signals that were held back when this process was forked."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _ENDING)


class _InThisThread:
    """A pattern of warnings about threads, which matches in the thread that made it."""

    def __init__(self) -> None:
        self._thread = threading.get_ident()

    def match(self, text: str) -> bool:
        return threading.get_ident() == self._thread and _THREADS.match(text) is not None


@contextmanager
def _no_warning_of_threads() -> Iterator[None]:
    """Suppress the warnings of Python and of JAX about forking a process with threads, which the child does not use.

    `catch_warnings` would undo changes that other threads make to the filters.
    """
    entry = ("ignore", _InThisThread(), Warning, None, 0)
    filters: list[object] = warnings.filters  # type: ignore[assignment]  # the stubs say that it is a sequence
    filters.insert(0, entry)
    try:
        yield
    finally:
        for entries in (filters, warnings.filters):  # another thread may have replaced the list by a copy
            with suppress(ValueError):
                entries.remove(entry)  # type: ignore[union-attr]  # as above
