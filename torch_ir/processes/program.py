"""A program that runs once in a separate process, and its output up to a limit."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

from torch_ir.processes.process_end import GRACE_SECONDS

_STDERR_BYTES = 1 << 16  # of its standard error, the last ones are kept


def python_command(main: str, *arguments: str, options: Sequence[str] = ()) -> list[str]:
    """Return the command that calls `module:function` with texts, in a Python process with this one's `sys.path`."""
    module, _, function = main.partition(":")
    end = 1 + len(arguments)
    start = (
        f"import sys; sys.path[:] = sys.argv[{end}:]; from {module} import {function}; {function}(*sys.argv[1:{end}])"
    )
    return [sys.executable, *options, "-c", start, *arguments, *map(os.path.abspath, sys.path)]


class Program:
    """A running program; `stdout` and `stderr` are what it has written.

    It has its own session: Ctrl-C at the terminal goes to this process, which ends the program and its children.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        stdin: IO[bytes] | None = None,
        folder: Path | None = None,
        environment: Mapping[str, str] | None = None,
        most_bytes: int | None = None,
    ) -> None:
        self._process = subprocess.Popen(
            command,
            stdin=stdin or subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=folder,
            env=environment,
            start_new_session=True,
        )
        self.stdout = bytearray()
        self._stderr = bytearray()
        self.is_over_limit = False
        self._most_bytes = most_bytes
        self._begun = threading.Event()
        self._readers = [
            threading.Thread(target=self._read_stdout, args=[self._process.stdout], daemon=True),
            threading.Thread(target=self._read_stderr, args=[self._process.stderr], daemon=True),
        ]
        for reader in self._readers:
            reader.start()

    @property
    def stderr(self) -> str:
        """The end of its standard error."""
        return self._stderr.decode(errors="replace")

    def wait(self, seconds: float, start: float = 0.0) -> bool:
        """Whether it ends within `seconds` after its first output, for which it has `start` seconds."""
        self._begun.wait(start)
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            self._process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(GRACE_SECONDS)
            return False
        return True

    def end(self) -> int:
        """Kill it if it is running; return its status, or the negative number of the signal that ended it."""
        self.kill()
        status = self._process.wait()
        for reader in self._readers:
            reader.join(GRACE_SECONDS)
        return status

    def kill(self) -> None:
        """Kill it and its children."""
        if self._process.poll() is not None:
            return
        if hasattr(os, "killpg"):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)
        self._process.kill()

    def _read_stdout(self, stream: IO[bytes]) -> None:
        while piece := os.read(stream.fileno(), 1 << 20):
            self.stdout += piece
            self._begun.set()
            if self._most_bytes is not None and len(self.stdout) > self._most_bytes:
                self.is_over_limit = True
                self.kill()
                break
        self._begun.set()
        stream.close()

    def _read_stderr(self, stream: IO[bytes]) -> None:
        while piece := os.read(stream.fileno(), 1 << 16):
            self._stderr += piece
            del self._stderr[:-_STDERR_BYTES]
        stream.close()
