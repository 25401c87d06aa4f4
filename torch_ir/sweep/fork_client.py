"""Client side of the fork servers: processes with torch preloaded that fork one worker per job.

A fork server is an ordinary subprocess, so that any kind of worker may have one, including daemons.
"""

from __future__ import annotations

import os
import pickle
import threading
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch_ir.errors import CommandError
from torch_ir.ir.files.temporary_folders import TemporaryFolder, explained
from torch_ir.processes.forked_child import CAN_FORK
from torch_ir.processes.line_server import LineServer

REQUEST, GRAPH = "request", "graph.json"
_Kind = tuple[int, tuple[str, ...]]
_lock = threading.Lock()
_waiting: dict[_Kind, list[ForkServer]] = defaultdict(list)
_all: set[ForkServer] = set()


class ServerLostError(Exception):
    """A fork server was killed from outside."""


class ForkServer:
    """A fork server process, which runs one job at a time."""

    def __init__(self, threads: int, preload: tuple[str, ...]) -> None:
        if not CAN_FORK:
            raise CommandError("a sweep needs os.fork, which this system does not have")
        self._is_ended = False
        environment = {**os.environ, "OMP_NUM_THREADS": str(threads), "MALLOC_ARENA_MAX": "2"}
        main, modules = "torch_ir.sweep.fork_server:main", ",".join(preload)
        self._server = LineServer(main, modules, environment=environment, own_session=True, quiet=True)

    @property
    def is_alive(self) -> bool:
        return self._server.is_alive

    def run(self, job: Any, seconds: float, memory: int) -> tuple[dict[str, Any], bytes | None]:
        """Run a job; return its record and the graph's text, or raise ServerLostError if the server is killed."""
        with TemporaryFolder() as folder:
            with explained():
                (folder / REQUEST).write_bytes(pickle.dumps(job))
            record = self._server.ask({"folder": str(folder), "seconds": seconds, "memory": memory})
            if record is None:
                raise EOFError("the sweep was ended") if self._is_ended else ServerLostError
            graph = folder / GRAPH
            return record, graph.read_bytes() if record.get("digest") else None

    def end(self) -> None:
        """Kill the server and its worker."""
        self._is_ended = True
        self._server.kill()
        self._server.close()
        with _lock:
            _all.discard(self)


@contextmanager
def borrowed_server(threads: int, preload: tuple[str, ...]) -> Iterator[ForkServer]:
    """Yield an idle fork server, which is kept for the next job."""
    kind = (threads, preload)
    with _lock:
        server = _waiting[kind].pop() if _waiting[kind] else None
    if server is None or not server.is_alive:
        server = ForkServer(threads, preload)
        with _lock:
            _all.add(server)
    try:
        yield server
    except BaseException:
        server.end()
        raise
    with _lock:
        _waiting[kind].append(server)


def end_all() -> None:
    """End all fork servers of this process, including busy ones."""
    with _lock:
        found = list(_all)
        _waiting.clear()
    for server in found:
        server.end()
