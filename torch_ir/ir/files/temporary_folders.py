"""Locked temporary folders; creating one removes the leftovers of crashed processes."""

from __future__ import annotations

import os
import re
import stat
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from torch_ir.errors import ExecutionError, TorchIRError, first_line
from torch_ir.ir.files.atomic_write import remove
from torch_ir.ir.files.locks import try_lock

_PREFIX = "torch_ir-run-"
_NAME = re.compile(re.escape(_PREFIX) + r"\w{8}")
_NEW = 60.0  # seconds until a folder is surely locked


class TemporaryFolder:
    """A private locked folder, until `cleanup` or the end of the `with` block."""

    def __init__(self) -> None:
        _remove_left()
        with explained():
            self.path = Path(tempfile.mkdtemp(prefix=_PREFIX))
        self._handle = -1
        with suppress(OSError):  # Windows cannot open folders, and has no such locks
            self._handle = os.open(self.path, os.O_RDONLY)
            try_lock(self._handle)

    def cleanup(self) -> None:
        remove(self.path)
        handle, self._handle = self._handle, -1
        if handle >= 0:
            os.close(handle)

    def __enter__(self) -> Path:
        return self.path

    def __exit__(self, *_: object) -> None:
        self.cleanup()


@contextmanager
def explained() -> Iterator[None]:
    """Convert errors of writing to the temporary folder; torch.save raises RuntimeError on a full disk."""
    try:
        yield
    except TorchIRError:
        raise
    except (OSError, RuntimeError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else first_line(error)
        message = f"cannot write to the temporary folder {_place()}: {reason}"
        raise ExecutionError(f"{message}; free some space, or set TMPDIR to another folder") from None


def _place() -> str:
    try:
        return tempfile.gettempdir()
    except OSError:  # none of the usual places is writable
        return os.environ.get("TMPDIR", "of this system")


def _remove_left() -> None:
    """Remove this user's folders whose processes are dead."""
    try:
        place = Path(tempfile.gettempdir())
        found = [place / name for name in os.listdir(place) if _NAME.fullmatch(name)]
    except OSError:
        return
    for folder in found:
        with suppress(OSError):
            if _is_left(folder):
                remove(folder)


def _is_left(folder: Path) -> bool:
    facts = folder.lstat()
    is_own = stat.S_ISDIR(facts.st_mode) and (not hasattr(os, "geteuid") or facts.st_uid == os.geteuid())
    if not is_own or time.time() - facts.st_mtime < _NEW:
        return False
    handle = os.open(folder, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0))
    try:
        return try_lock(handle) is True
    finally:
        os.close(handle)
