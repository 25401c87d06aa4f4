"""Standard streams that never fail a command: a closed pipe or a full disk is recorded and reported at the end.

So a verb that prints before it saves, or user code that prints, is not stopped halfway.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, TextIO

_was_closed = False  # whether this process was started without stdout


class Stream:
    """A text stream that records the first write error and discards everything after it."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self.error: OSError | None = None

    def write(self, text: str) -> int:
        if self.error is None:
            try:
                return self._stream.write(text)
            except OSError as error:
                self._fail(error)
        return len(text)

    def flush(self) -> None:
        if self.error is None:
            try:
                self._stream.flush()
            except OSError as error:
                self._fail(error)

    def _fail(self, error: OSError) -> None:
        """Record the error and redirect the buffered rest to the null device, or Python fails at exit."""
        self.error = error
        with suppress(OSError, ValueError):
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, self._stream.fileno())
            os.close(null)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextmanager
def guarded_streams() -> Iterator[Stream]:
    """Replace stdout and stderr by streams that do not fail; yield stdout, whose `error` is the first failure."""
    _open_closed_streams()
    before = sys.stdout, sys.stderr
    stdout, stderr = Stream(sys.stdout), Stream(sys.stderr)
    sys.stdout, sys.stderr = stdout, stderr
    try:
        yield stdout
    finally:
        stdout.flush()
        stderr.flush()
        sys.stdout, sys.stderr = before


def is_stdout_closed() -> bool:
    """Whether the command was started without stdout, as with `>&-`."""
    return _was_closed


def _open_closed_streams() -> None:
    """Open the null device for closed standard streams, so that no other file gets their numbers."""
    global _was_closed
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest free number, which is this one
    if sys.stdout is None:
        _was_closed = True
        sys.stdout = os.fdopen(os.open(os.devnull, os.O_WRONLY), "w", encoding="utf-8")
    if sys.stderr is None:
        sys.stderr = os.fdopen(os.open(os.devnull, os.O_WRONLY), "w", encoding="utf-8")
