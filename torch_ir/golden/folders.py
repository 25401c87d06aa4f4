"""Folders that appear whole or not at all, and take the place of others in one step."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from torch_ir.ir.files.atomic_write import hidden_name, left_behind, remove, sync_folder, write_errors
from torch_ir.ir.files.locks import folder_lock, lock

_HERE = -100  # the folder that relative paths begin in, as Linux knows it
_SWAP = 2  # the flag of both systems


@contextmanager
def new_folder(target: Path) -> Iterator[Path]:
    """A hidden folder to fill that is the target at the end; after an error nothing is left of it."""
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
            remove(folder)  # or what was the target before


def restore(target: Path) -> None:
    """Put a folder back that a process took away to put another there, and died."""
    before = _before(target)
    if _is_folder(before) and not os.path.lexists(target):
        with folder_lock(target.parent), suppress(OSError):
            if _is_folder(before) and not os.path.lexists(target):
                before.rename(target)


def _is_folder(path: Path) -> bool:
    """Return whether there is a folder of this name, and not a link to one."""
    return path.is_dir() and not path.is_symlink()


def _hidden_folder(target: Path) -> tuple[Path, int]:
    """A folder, and the handle that holds its lock; there is none on systems where folders cannot be opened."""
    while True:
        folder = hidden_name(target)
        folder.mkdir()
        if os.name == "nt":
            return folder, -1
        try:
            handle = os.open(folder, os.O_RDONLY)
        except FileNotFoundError:
            continue  # somebody took it for dead before it had its lock
        except BaseException:
            remove(folder)
            raise
        lock(handle)
        if folder.exists():
            return folder, handle
        os.close(handle)


def _take_place(folder: Path, target: Path) -> None:
    """Let a folder be the target; what was there before is gone, or lies under the folder's name."""
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
    """Whether two folders could be swapped in one step; not on every system, and not if one is not there."""
    library: Any = None if os.name == "nt" else ctypes.CDLL(None)
    paths = os.fsencode(one), os.fsencode(other)
    if hasattr(library, "renameat2"):  # Linux
        return bool(library.renameat2(_HERE, paths[0], _HERE, paths[1], _SWAP) == 0)
    if hasattr(library, "renamex_np"):  # macOS
        return bool(library.renamex_np(*paths, _SWAP) == 0)
    return False


def _before(target: Path) -> Path:
    """The name of a folder between the two steps in which it is replaced where there is no single one."""
    return hidden_name(target, "before")
