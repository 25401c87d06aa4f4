"""Processes that have torch already, and fork one child for each job: this is their near side.

A mother is an ordinary subprocess, so that workers of any kind may have one, daemons too. She ends when the process
that started her does, however that ends: her standard input is then at its end.
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
_waiting: dict[_Kind, list[Nursery]] = defaultdict(list)
_all: set[Nursery] = set()


class MotherLostError(Exception):
    """A mother was killed, by somebody else."""


class Nursery:
    """A mother process, which carries out one job after the other."""

    def __init__(self, threads: int, preload: tuple[str, ...]) -> None:
        if not hasattr(os, "fork"):
            raise CommandError("a sweep forks a process for each model, which this system cannot")
        self._is_ended = False
        paths = [os.path.abspath(path) for path in sys.path]
        self._process = subprocess.Popen(
            [sys.executable, "-c", _START, ",".join(preload), *paths],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "OMP_NUM_THREADS": str(threads), "MALLOC_ARENA_MAX": "2"},
            start_new_session=True,  # an interrupt at the terminal is for us, who then end the mother
        )

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    def run(self, job: Any, seconds: float, memory: int) -> tuple[dict[str, Any], bytes | None]:
        """What became of a job, and the graph's text; a MotherLostError if she herself is killed."""
        with TemporaryFolder() as folder:
            with explained():
                (folder / REQUEST).write_bytes(pickle.dumps(job))
            record = self._ask({"folder": str(folder), "seconds": seconds, "memory": memory})
            graph = folder / GRAPH
            return record, graph.read_bytes() if record.get("digest") else None

    def _ask(self, question: dict[str, Any]) -> dict[str, Any]:
        told, heard = self._process.stdin, self._process.stdout
        assert told is not None  # both are pipes
        assert heard is not None
        try:
            told.write(json.dumps(question).encode() + b"\n")
            told.flush()
            answer = heard.readline()
        except (OSError, ValueError):  # a broken pipe, or one that `end` closed
            answer = b""
        if not answer.endswith(b"\n"):
            raise EOFError("the sweep was ended") if self._is_ended else MotherLostError
        record: dict[str, Any] = json.loads(answer)
        return record

    def end(self) -> None:
        """Kill her; her child dies with her."""
        self._is_ended = True
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            with suppress(OSError, RuntimeError):  # what she did not read, or somebody is reading from just now
                assert pipe is not None  # both are pipes
                pipe.close()
        with _lock:
            _all.discard(self)


@contextmanager
def nursery(threads: int, preload: tuple[str, ...]) -> Iterator[Nursery]:
    """A mother who has nothing to do; she waits for the next job afterwards."""
    kind = (threads, preload)
    with _lock:
        mother = _waiting[kind].pop() if _waiting[kind] else None
    if mother is None or not mother.is_alive:
        mother = Nursery(threads, preload)
        with _lock:
            _all.add(mother)
    try:
        yield mother
    except BaseException:
        mother.end()
        raise
    with _lock:
        _waiting[kind].append(mother)


def end_all() -> None:
    """End every mother of this process, also those at work."""
    with _lock:
        found = list(_all)
        _waiting.clear()
    for mother in found:
        mother.end()
