"""Open regular files only: never block on a pipe or read a device, and follow links only where that is allowed.

Names in a folder may come from an untrusted archive. A path that the user passed may be a link; a name that torch_ir
derives from it (a side file, a note, the files of a pack or of a sweep) may not.
"""

from __future__ import annotations

import errno
import os
import stat

_NO_WAIT = getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0) | getattr(os, "O_BINARY", 0)
_NO_LINK = getattr(os, "O_NOFOLLOW", 0)


class IrregularFileError(OSError):
    """A link, a pipe or a device where a regular file was expected; `strerror` says so."""


class TooLargeError(OSError):
    """A file is larger than its reader accepts; `size` is its size."""

    def __init__(self, path: str, size: int, most: int) -> None:
        super().__init__(errno.EFBIG, f"{size} bytes are more than {most}", path)
        self.size = size


def open_regular(path: str | os.PathLike[str], flags: int = os.O_RDONLY, *, follow: bool) -> int:
    """Return a handle of a regular file; raise an OSError for anything else, and for a link unless `follow`."""
    name = os.fspath(path)
    if not follow and os.path.islink(name):
        raise IrregularFileError(errno.ELOOP, "is a link; a plain file is expected", name)
    handle = os.open(name, flags | _NO_WAIT | (0 if follow else _NO_LINK), 0o666)
    try:
        mode = os.fstat(handle).st_mode
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), name)
        if not stat.S_ISREG(mode):
            raise IrregularFileError(errno.EINVAL, "is not a plain file", name)
    except BaseException:
        os.close(handle)
        raise
    return handle


def read_regular(path: str | os.PathLike[str], most: int, *, follow: bool) -> bytes:
    """Return the bytes of a regular file; raise TooLargeError before reading any if there are more than `most`."""
    with os.fdopen(open_regular(path, follow=follow), "rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size > most:
            raise TooLargeError(os.fspath(path), size, most)
        return file.read(size)  # ignore what is appended meanwhile


def create_regular(path: str | os.PathLike[str], data: bytes) -> None:
    """Write a new file; raise FileExistsError if anything has its name, also a dangling link."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _NO_WAIT | _NO_LINK, 0o666), "wb") as file:
        file.write(data)
