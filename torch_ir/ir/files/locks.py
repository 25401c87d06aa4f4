"""Locks on files and folders that end with the process that holds them, and of which nothing lies on the disk."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

if sys.platform != "win32":
    import fcntl

_PATIENCE = 20.0  # seconds; a process that was stopped must not stop all others
_PAUSE = 0.001


@contextmanager
def folder_lock(folder: Path, *, shared: bool = False) -> Iterator[bool]:
    """Hold a folder against others who put files there together; says whether it is held, which not all systems can."""
    try:
        handle = os.open(folder, os.O_RDONLY | getattr(os, "O_DIRECTORY", 0))
    except OSError:  # on Windows, or of a folder that may be written to but not read
        handle = -1
    try:
        yield handle >= 0 and lock(handle, shared=shared)
    finally:
        if handle >= 0:
            unlock(handle)
            os.close(handle)


def lock(handle: int, *, shared: bool = False) -> bool:
    """Wait for a lock; says whether it was got."""
    end = time.monotonic() + _PATIENCE
    while (found := try_lock(handle, shared=shared)) is False and time.monotonic() < end:
        time.sleep(_PAUSE)
    return found is True


def try_lock(handle: int, *, shared: bool = False) -> bool | None:
    """Take a lock, if nobody holds it; None where there are no locks."""
    if sys.platform == "win32":
        return None
    try:
        fcntl.flock(handle, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # network drives may have none
        return None
    return True


def unlock(handle: int) -> None:
    """Let go of a lock, also where a forked process still has the file open."""
    if sys.platform != "win32":
        try:
            fcntl.flock(handle, fcntl.LOCK_UN)
        except OSError:
            return
