"""Client side of the fork servers: processes with torch preloaded that fork one worker per job.

A fork server is an ordinary subprocess, so that any kind of worker may have one, including daemons. It ends with the
process that started it, because its standard input is closed then.
"""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
import threading
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from torch_ir.errors import CommandError
from torch_ir.ir.files.temporary_folders import TemporaryFolder, explained

REQUEST, GRAPH = "request", "graph.json"
_START = "import sys; sys.path[:] = sys.argv[2:]; from torch_ir.sweep.fork_server import main; main(sys.argv[1])"
_Kind = tuple[int, tuple[str, ...]]
_lock = threading.Lock()
_waiting: dict[_Kind, list[ForkServer]] = defaultdict(list)
_all: set[ForkServer] = set()


class ServerLostError(Exception):
    """A fork server was killed from outside."""


class ForkServer:
    """A fork server process, which runs one job at a time."""

    def __init__(self, threads: int, preload: tuple[str, ...]) -> None:
        if not hasattr(os, "fork"):
            raise CommandError("a sweep needs os.fork, which this system does not have")
        self._is_ended = False
        paths = [os.path.abspath(path) for path in sys.path]
        self._process = subprocess.Popen(
            [sys.executable, "-c", _START, ",".join(preload), *paths],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "OMP_NUM_THREADS": str(threads), "MALLOC_ARENA_MAX": "2"},
            start_new_session=True,  # Ctrl-C goes to this process, which then ends the server
        )

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    def run(self, job: Any, seconds: float, memory: int) -> tuple[dict[str, Any], bytes | None]:
        """Run a job; return its record and the graph's text, or raise ServerLostError if the server is killed."""
        with TemporaryFolder() as folder:
            with explained():
                (folder / REQUEST).write_bytes(pickle.dumps(job))
            record = self._request({"folder": str(folder), "seconds": seconds, "memory": memory})
            graph = folder / GRAPH
            return record, graph.read_bytes() if record.get("digest") else None

    def _request(self, request: dict[str, Any]) -> dict[str, Any]:
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None  # both are pipes
        assert stdout is not None
        try:
            stdin.write(json.dumps(request).encode() + b"\n")
            stdin.flush()
            answer = stdout.readline()
        except (OSError, ValueError):  # a broken pipe, or one that `end` closed
            answer = b""
        if not answer.endswith(b"\n"):
            raise EOFError("the sweep was ended") if self._is_ended else ServerLostError
        record: dict[str, Any] = json.loads(answer)
        return record

    def end(self) -> None:
        """Kill the server and its worker."""
        self._is_ended = True
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            with suppress(OSError, RuntimeError):  # unread data, or another thread is reading
                assert pipe is not None  # both are pipes
                pipe.close()
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
