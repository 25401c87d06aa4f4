"""A separate Python process with a minimal environment, and its output up to a limit."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import IO

_START = "import sys; sys.path[:] = sys.argv[3:]; from torch_ir.run.isolated_child import main; main()"
# Library paths, and the numbers and waiting of threads; nothing else is passed on.
_ENVIRONMENT = (
    "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "SYSTEMROOT", "OMP_NUM_THREADS", "OMP_WAIT_POLICY", "MKL_NUM_THREADS",
)  # fmt: skip
_STDERR_BYTES = 1 << 16  # of its standard error, the last ones are kept
GRACE_SECONDS = 2.0  # seconds to report where it is, after a timeout


class Child:
    """A running process; `stdout` and `stderr` are what it has written."""

    def __init__(self, request: Path, folder: Path, memory: int, most: int) -> None:
        paths = [os.path.abspath(path) for path in sys.path]
        kept = {name: os.environ[name] for name in _ENVIRONMENT if name in os.environ}
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-B", "-c", _START, str(request), str(memory), *paths],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=folder,
            env={**kept, "TMPDIR": str(folder), "MALLOC_ARENA_MAX": "2"},  # arenas reserve address space in vain
            start_new_session=True,  # an interrupt at the terminal goes to this process, which ends the child
        )
        self.stdout = bytearray()
        self.stderr = bytearray()
        self.is_over_limit = False
        self._most = most
        self._begun = threading.Event()
        self._readers = [
            threading.Thread(target=self._read_stdout, args=[self._process.stdout], daemon=True),
            threading.Thread(target=self._read_stderr, args=[self._process.stderr], daemon=True),
        ]
        for reader in self._readers:
            reader.start()

    def wait(self, start: float, seconds: float) -> bool:
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
        self._process.kill()
        status = self._process.wait()
        for reader in self._readers:
            reader.join(GRACE_SECONDS)
        return status

    def _read_stdout(self, stream: IO[bytes]) -> None:
        while piece := os.read(stream.fileno(), 1 << 20):
            self.stdout += piece
            self._begun.set()
            if len(self.stdout) > self._most:
                self.is_over_limit = True
                self._process.kill()
                break
        self._begun.set()
        stream.close()

    def _read_stderr(self, stream: IO[bytes]) -> None:
        while piece := os.read(stream.fileno(), 1 << 16):
            self.stderr += piece
            del self.stderr[:-_STDERR_BYTES]
        stream.close()
