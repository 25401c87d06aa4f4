"""The cache folder of the user; any file in it may be deleted.

Compiled code is cached only in folders that no other user can write to, because it is executed.
"""

from __future__ import annotations

import json
import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import Any

from torch_ir.errors import SerializationError
from torch_ir.ir.files.atomic_write import plain_target, write_text
from torch_ir.ir.files.regular_file import read_regular


def cache_folder() -> Path:
    """Return `$TORCH_IR_CACHE`, or `torch_ir` in the user's cache folder."""
    if chosen := os.environ.get("TORCH_IR_CACHE"):
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "torch_ir"


def private_cache(name: str) -> Path | None:
    """Return a folder for compiled code that only this user can write to; None if there is none."""
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
    """Whether a folder belongs to this user, and no other user can write to it or replace it."""
    if not hasattr(os, "geteuid"):
        return True  # Windows, where a user's folders are private by default
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


class CachedTable:
    """A JSON object in the cache folder, shared between processes; an unreadable file counts as empty.

    Two processes that write at once may lose one of the entries, never the file: entries can be computed again.
    """

    def __init__(self, name: str, most_bytes: int, most_entries: int | None = None) -> None:
        self._path = cache_folder() / name
        self._most_bytes, self._most_entries = most_bytes, most_entries

    def get(self, key: str) -> Any:
        """Return the value of a key, None if there is none."""
        return self._read().get(key)

    def keep(self, key: str, value: Any) -> None:
        """Store a value, if the folder is writable; the oldest entries give way."""
        others = [(name, kept) for name, kept in self._read().items() if name != key]
        if self._most_entries is not None:
            others = others[max(0, len(others) - self._most_entries + 1) :]
        text = json.dumps(dict([*others, (key, value)]), indent=1)
        with suppress(SerializationError):
            write_text(plain_target(self._path), text)

    def _read(self) -> dict[str, Any]:
        try:
            found = json.loads(read_regular(self._path, self._most_bytes, follow=False))
        except (OSError, ValueError, RecursionError):
            return {}
        return found if isinstance(found, dict) else {}
