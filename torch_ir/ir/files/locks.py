"""Locks on files and folders that end with the process holding them and leave nothing on disk."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

if sys.platform != "win32":
    import fcntl

_PATIENCE = 20.0  # seconds; a suspended process must not block all others
_PAUSE = 0.001


@contextmanager
def folder_lock(folder: Path, *, shared: bool = False) -> Iterator[bool]:
    """Lock a folder against other writers of file pairs; yield whether it is locked, as not all systems support it."""
    try:
        handle = os.open(folder, os.O_RDONLY | getattr(os, "O_DIRECTORY", 0))
    except OSError:  # Windows, or a folder that is writable but not readable
        handle = -1
    try:
        yield handle >= 0 and lock(handle, shared=shared)
    finally:
        if handle >= 0:
            unlock(handle)
            os.close(handle)


def lock(handle: int, *, shared: bool = False) -> bool:
    """Wait for a lock; return whether it was acquired."""
    end = time.monotonic() + _PATIENCE
    while (found := try_lock(handle, shared=shared)) is False and time.monotonic() < end:
        time.sleep(_PAUSE)
    return found is True


def try_lock(handle: int, *, shared: bool = False) -> bool | None:
    """Take a lock if it is free; return None if locks are not supported."""
    if sys.platform == "win32":
        return None
    try:
        fcntl.flock(handle, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # some network drives do not support locks
        return None
    return True


def unlock(handle: int) -> None:
    """Release a lock, also if a forked process still has the file open."""
    if sys.platform != "win32":
        try:
            fcntl.flock(handle, fcntl.LOCK_UN)
        except OSError:
            return
