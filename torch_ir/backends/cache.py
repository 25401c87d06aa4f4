"""What is remembered from one process to the next: in a folder of the user's, where any file may be deleted.

Compiled code is kept only in folders that no other user can write to, as whatever lies there is executed.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path


def cache_folder() -> Path:
    """`$TORCH_IR_CACHE`, or `torch_ir` in the folder that the system has for such things."""
    told = os.environ.get("TORCH_IR_CACHE")
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(told) if told else Path(base) / "torch_ir"


def private_cache(name: str) -> Path | None:
    """Return a folder for compiled code that only this user can write to; None where there can be none."""
    folder = cache_folder() / name
    try:
        folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.mkdir(mode=0o700, exist_ok=True)
        if is_private(folder, umask_allowed=True):
            folder.chmod(0o700)
    except OSError:
        return None
    return folder if is_private(folder) else None


def is_private(folder: Path, *, umask_allowed: bool = False) -> bool:
    """Return whether a folder is this user's, no other can write to it, and none can put another in its place."""
    if not hasattr(os, "geteuid"):
        return True  # Windows, where the folders of a user are that user's by default
    try:
        own, above = folder.lstat(), folder.parent.stat()
    except OSError:
        return False
    if not stat.S_ISDIR(own.st_mode) or own.st_uid != os.geteuid():
        return False
    is_shared = above.st_mode & stat.S_IWOTH and not above.st_mode & stat.S_ISVTX
    if is_shared or above.st_uid not in (0, os.geteuid()):
        return False
    return umask_allowed or not own.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
