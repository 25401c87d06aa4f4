"""Atomic creation and replacement of folders."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from torch_ir.ir.files.atomic_write import hidden_name, left_behind, remove, sync_folder, write_errors
from torch_ir.ir.files.locks import folder_lock, lock

_HERE = -100  # AT_FDCWD on Linux
_SWAP = 2  # the exchange flag on Linux and macOS


@contextmanager
def new_folder(target: Path) -> Iterator[Path]:
    """Yield a hidden folder that becomes the target at the end; it is removed after an error."""
    with write_errors(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        restore(target)
        for left in left_behind(target):
            remove(left)
        folder, handle = _hidden_folder(target)
        try:
            if target.exists():
                folder.chmod(target.stat().st_mode & 0o777)
            yield folder
            sync_folder(folder)
            with folder_lock(target.parent):
                _take_place(folder, target)
                sync_folder(target.parent)
        finally:
            if handle >= 0:
                os.close(handle)
            remove(folder)  # or the previous target


def restore(target: Path) -> None:
    """Restore a folder that a process moved away before it was killed."""
    before = _before(target)
    if _is_folder(before) and not os.path.lexists(target):
        with folder_lock(target.parent), suppress(OSError):
            if _is_folder(before) and not os.path.lexists(target):
                before.rename(target)


def _is_folder(path: Path) -> bool:
    """Whether there is a folder of this name, not a link to one."""
    return path.is_dir() and not path.is_symlink()


def _hidden_folder(target: Path) -> tuple[Path, int]:
    """Create a locked folder; return it and the handle of its lock, or -1 where folders cannot be opened."""
    while True:
        folder = hidden_name(target)
        folder.mkdir()
        if os.name == "nt":
            return folder, -1
        try:
            handle = os.open(folder, os.O_RDONLY)
        except FileNotFoundError:
            continue  # another process removed it as abandoned before it was locked
        except BaseException:
            remove(folder)
            raise
        lock(handle)
        if folder.exists():
            return folder, handle
        os.close(handle)


def _take_place(folder: Path, target: Path) -> None:
    """Move a folder to the target; the previous content is removed or left under the folder's name."""
    if _swapped(folder, target):
        return
    before = _before(target)
    if target.exists():
        remove(before)
        target.rename(before)
    try:
        folder.rename(target)
    except OSError:
        if before.exists():
            before.rename(target)
        raise
    remove(before)


def _swapped(one: Path, other: Path) -> bool:
    """Swap two folders atomically; return False if the system cannot, or one does not exist."""
    library: Any = None if os.name == "nt" else ctypes.CDLL(None)
    paths = os.fsencode(one), os.fsencode(other)
    if hasattr(library, "renameat2"):  # Linux
        return bool(library.renameat2(_HERE, paths[0], _HERE, paths[1], _SWAP) == 0)
    if hasattr(library, "renamex_np"):  # macOS
        return bool(library.renamex_np(*paths, _SWAP) == 0)
    return False


def _before(target: Path) -> Path:
    """Return the temporary name of a folder that is replaced in two steps."""
    return hidden_name(target, "before")
