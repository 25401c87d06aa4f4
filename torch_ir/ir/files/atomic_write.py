"""Atomic file writes.

A new file is unnamed until it is complete, if the system supports that, and has a hidden name just before it replaces
the target. The writer holds a lock on it, so that the next writer can recognise what a crashed process left.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import secrets
import shutil
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from torch_ir.errors import ClosedPipeError, SerializationError, TorchIRError
from torch_ir.ir.files.locks import lock, try_lock

_DIGITS = 16
HIDDEN = ".torch_ir-"  # before the names of what is being written
_BINARY = getattr(os, "O_BINARY", 0)


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Replace a text file atomically."""
    try:
        data = text.encode()
    except UnicodeEncodeError:
        raise SerializationError(
            f"cannot write {os.fspath(path)}: a string holds half of a surrogate pair", rule="R3"
        ) from None
    write_bytes(path, data)


def write_bytes(path: str | os.PathLike[str], data: bytes) -> None:
    """Replace a file atomically: readers see the old file or the new one, never a part."""
    target = real_target(path)
    if is_stream(target):
        _write_straight(target, data)
        return
    with draft(target) as new:
        new.write(data)
        new.complete()
        for left in left_behind(target):
            remove(left)
        new.put(target)
        sync_folder(target.parent)


# -- targets ----------------------------------------------------------------------------------------------------------


def real_target(path: str | os.PathLike[str]) -> Path:
    """Return the file to replace, following a link; raise SerializationError for a folder."""
    target = Path(path)
    with write_errors(target):
        try:
            mode = os.stat(target).st_mode
        except FileNotFoundError:
            mode = 0
        except ValueError as error:  # a name with a NUL
            raise OSError(str(error)) from None
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    return target if is_stream(target) else without_link(target)


def plain_target(path: Path) -> Path:
    """Return a path to write to whose name torch_ir derived; refuse a link, pipe, device or folder."""
    with write_errors(path), suppress(FileNotFoundError):
        mode = os.lstat(path).st_mode
        if not stat.S_ISREG(mode):
            kind = "a link, which could lead anywhere" if stat.S_ISLNK(mode) else "not a plain file"
            raise SerializationError(f"cannot write {path}: it is {kind}; remove it", rule="R18")
    return path


def without_link(path: Path) -> Path:
    """Resolve a symbolic link."""
    return Path(os.path.realpath(path)) if path.is_symlink() else path


def is_stream(target: Path) -> bool:
    """Whether bytes are written directly: to a pipe or device, or to this process's stdout."""
    try:
        facts = os.stat(target)
    except OSError:
        return False
    return not stat.S_ISREG(facts.st_mode) or _is_printed_to(facts)


def _is_printed_to(facts: os.stat_result) -> bool:
    try:
        return os.path.samestat(facts, os.fstat(1))
    except OSError:  # closed
        return False


def _write_straight(target: Path, data: bytes) -> None:
    """Write to a stream; raise ClosedPipeError if the reader of stdout has closed it."""
    with write_errors(target):
        is_stdout = _is_printed_to(os.stat(target))
        if is_stdout and sys.stdout is not None:
            sys.stdout.flush()
        handle = os.dup(1) if is_stdout else os.open(target, os.O_WRONLY | _BINARY)
        try:
            _write_all(handle, data)
        except BrokenPipeError:
            if is_stdout:
                raise ClosedPipeError(f"cannot write {target}: its reader has closed it", rule="R18") from None
            raise
        finally:
            os.close(handle)


@contextmanager
def write_errors(target: Path) -> Iterator[None]:
    """Convert OSError to a SerializationError that names the file."""
    try:
        yield
    except TorchIRError:
        raise
    except OSError as error:
        raise SerializationError(f"cannot write {target}: {error.strerror or error}", rule="R18") from None


# -- drafts -----------------------------------------------------------------------------------------------------------


class Draft:
    """A new file that stays invisible until it replaces its target or a side file."""

    def __init__(self, target: Path) -> None:
        self._target = target
        self._name: Path | None = None  # its temporary name, if it has one
        self._handle = self._unnamed()
        if self._handle < 0:
            self._handle = self._named()

    def take_mode(self) -> None:
        """Copy the permissions of the target, if it exists."""
        with suppress(FileNotFoundError):
            mode = self._target.stat().st_mode & 0o777
            if hasattr(os, "fchmod"):
                os.fchmod(self._handle, mode)

    def write(self, data: bytes | memoryview) -> None:
        """Append to the file."""
        _write_all(self._handle, data)

    def complete(self) -> None:
        """Flush the file to disk."""
        os.fsync(self._handle)

    def put(self, target: Path) -> None:
        """Rename it atomically to a file in the same folder."""
        name = self._give_name()
        if sys.platform == "win32":
            self._close()  # Windows cannot rename open files
        os.replace(name, target)
        self._name = None

    def _give_name(self) -> Path:
        """Give the file a hidden name, and return it."""
        if self._name is None:
            name = hidden_name(self._target)
            try:
                # Python follows the /proc link to the unnamed file only with src_dir_fd.
                os.link(f"/proc/self/fd/{self._handle}", name, src_dir_fd=self._handle, follow_symlinks=True)
                self._name = name
            except OSError:
                self._copy()
        assert self._name is not None
        return self._name

    def end(self) -> None:
        """Close the file, and remove it if it was not put anywhere."""
        name, self._name = self._name, None
        if sys.platform == "win32":
            self._close()
        if name is not None:
            remove(name)
        self._close()

    def _unnamed(self) -> int:
        flag: int = getattr(os, "O_TMPFILE", 0)
        try:
            handle = os.open(self._target.parent, os.O_RDWR | flag, 0o666) if flag else -1
        except OSError:  # unsupported; for any other reason, the named file fails with the same error
            return -1
        if handle >= 0:
            try_lock(handle)
        return handle

    def _named(self) -> int:
        while True:
            name = hidden_name(self._target)
            handle = os.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL | _BINARY, 0o666)
            lock(handle)
            if os.fstat(handle).st_nlink:
                self._name = name
                return handle
            os.close(handle)  # another process removed it before it was locked

    def _copy(self) -> None:
        """Copy to a named file, where the unnamed one cannot be linked."""
        source = self._handle
        self._handle = self._named()
        os.fchmod(self._handle, stat.S_IMODE(os.fstat(source).st_mode))
        os.lseek(source, 0, os.SEEK_SET)
        with os.fdopen(source, "rb") as old, os.fdopen(os.dup(self._handle), "wb") as new:
            shutil.copyfileobj(old, new)
        self.complete()

    def _close(self) -> None:
        handle, self._handle = self._handle, -1
        if handle >= 0:
            os.close(handle)


@contextmanager
def draft(target: Path) -> Iterator[Draft]:
    """Create a draft for a target, and its folder if needed; remove the draft at the end unless it was put."""
    with write_errors(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        new = Draft(target)
        try:
            new.take_mode()
            yield new
        finally:
            new.end()


def _write_all(handle: int, data: bytes | memoryview) -> None:
    rest = memoryview(data).cast("B")
    while rest:
        rest = rest[os.write(handle, rest) :]


def sync_folder(folder: Path) -> None:
    """Flush the names in a folder to disk."""
    if not hasattr(os, "O_DIRECTORY"):
        return
    try:
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except PermissionError:  # writable but not readable
        return
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


# -- leftovers --------------------------------------------------------------------------------------------------------


def hidden_name(target: Path, end: str = "") -> Path:
    """Return a hidden name beside a target, derived from it: a new one, or one with a fixed ending."""
    return target.parent / f"{_own(target)}{end or secrets.token_hex(_DIGITS // 2)}"


def left_behind(target: Path) -> Iterator[Path]:
    """Yield hidden files and folders for a target whose process is dead, each locked until the next is requested."""
    pattern = re.compile(re.escape(_own(target)) + f"[0-9a-f]{{{_DIGITS}}}")
    try:
        found = [target.with_name(name) for name in os.listdir(target.parent) if pattern.fullmatch(name)]
    except OSError:
        return
    for path in found:
        try:
            handle = os.open(path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0))
        except OSError:
            continue
        try:
            if try_lock(handle, shared=True):
                yield path
        finally:
            os.close(handle)


def _own(target: Path) -> str:
    """Return the prefix of hidden names for a target, which has a fixed length."""
    return f"{HIDDEN}{hashlib.sha256(os.fsencode(target.name)).hexdigest()[:_DIGITS]}-"


def remove(path: Path) -> None:
    """Remove a hidden file or folder; ignore failures, which are harmless."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with suppress(OSError):
            path.unlink()
