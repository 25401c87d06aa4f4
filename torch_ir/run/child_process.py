"""A Python process of its own, with next to nothing of this one's, and what it writes up to a limit."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import IO

_START = "import sys; sys.path[:] = sys.argv[3:]; from torch_ir.run.isolated_child import main; main()"
# Where libraries lie, and how many threads compute; nothing else is the child's business.
_ENVIRONMENT = ("LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "SYSTEMROOT", "OMP_NUM_THREADS", "MKL_NUM_THREADS")
_COMPLAINTS = 1 << 16  # bytes of its standard error that are kept, the last ones
LAST_WORDS = 2.0  # seconds to say where it is, for one that is out of time
_CRASHES = {
    "SIGSEGV": "it touched memory that is not its own",
    "SIGBUS": "it touched memory that is not there",
    "SIGABRT": "a library gave up",
    "SIGFPE": "it divided an integer by zero",
    "SIGKILL": "it was killed, as where the machine is out of memory",
}


class Child:
    """A process that is running; `said` is what it wrote to its standard output, `complaints` to its standard error."""

    def __init__(self, request: Path, folder: Path, memory: int, most: int) -> None:
        paths = [os.path.abspath(path) for path in sys.path]
        kept = {name: os.environ[name] for name in _ENVIRONMENT if name in os.environ}
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-B", "-c", _START, str(request), str(memory), *paths],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=folder,
            env={**kept, "TMPDIR": str(folder), "MALLOC_ARENA_MAX": "2"},  # arenas reserve addresses in vain
            start_new_session=True,  # an interrupt at the terminal is for us, who then end the child
        )
        self.said = bytearray()
        self.complaints = bytearray()
        self.is_too_much = False
        self._most = most
        self._begun = threading.Event()
        self._readers = [
            threading.Thread(target=self._listen, args=[self._process.stdout], daemon=True),
            threading.Thread(target=self._overhear, args=[self._process.stderr], daemon=True),
        ]
        for reader in self._readers:
            reader.start()

    def wait(self, patience: float, seconds: float) -> bool:
        """Whether it ends in `seconds` after its first word, for which it has `patience`."""
        self._begun.wait(patience)
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            self._process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(LAST_WORDS)
            return False
        return True

    def end(self) -> int:
        """Make an end of it, if it has none; its status, or the negative number of the signal that ended it."""
        self._process.kill()
        status = self._process.wait()
        for reader in self._readers:
            reader.join(LAST_WORDS)
        return status

    def _listen(self, stream: IO[bytes]) -> None:
        while piece := os.read(stream.fileno(), 1 << 20):
            self.said += piece
            self._begun.set()
            if len(self.said) > self._most:
                self.is_too_much = True
                self._process.kill()
                break
        self._begun.set()
        stream.close()

    def _overhear(self, stream: IO[bytes]) -> None:
        while piece := os.read(stream.fileno(), 1 << 16):
            self.complaints += piece
            del self.complaints[:-_COMPLAINTS]
        stream.close()


def signal_name(status: int) -> str:
    """The name of the signal that ended a process; empty if none did."""
    try:
        return signal.Signals(-status).name if status < 0 else ""
    except ValueError:
        return f"signal {-status}"


def crash(status: int, place: str = "") -> str:
    """How a signal ended a process, and what that mostly means; empty if none did."""
    name = signal_name(status)
    return name and f"crashed with {name}{place}{f': {_CRASHES[name]}' if name in _CRASHES else ''}"
