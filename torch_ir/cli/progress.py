"""A progress line on stderr, shown after two seconds: the current step, elapsed time, and an estimate of the rest."""

from __future__ import annotations

import os
import shutil
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TextIO

from torch_ir.errors import printable

_PATIENCE = 2.0  # seconds before the line appears
_TICK = 0.25
_ERASE = "\r\033[K"
_line: _Line | None = None


def show_progress(text: str, done: int = 0, total: int = 0) -> None:
    """Set the text of the progress line; with how much of how much is done, it shows about how long the rest takes."""
    if _line is not None and text:
        _line.text, _line.share = printable(text), done / total if total else 0.0


@contextmanager
def progress(text: str, *, quiet: bool = False) -> Iterator[None]:
    """Show the progress line while the block runs; it is erased at the end and never written to pipes."""
    global _line
    if quiet or not is_watched() or _line is not None:
        yield
        return
    shown, streams = _Line(text), (sys.stdout, sys.stderr)
    _line = shown
    sys.stdout, sys.stderr = _Beside(sys.stdout, shown), _Beside(sys.stderr, shown)
    try:
        with _log_shown("torch_ir"):
            yield
    finally:
        shown.end()
        sys.stdout, sys.stderr = streams
        _line = None


def is_watched() -> bool:
    """Whether stderr is a terminal and progress is not disabled by the environment."""
    return sys.stderr.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


class _Line:
    """The progress line and the thread that updates it."""

    def __init__(self, text: str) -> None:
        self.text, self.share = text, 0.0
        self.lock = threading.RLock()
        self._stream, self._start = sys.stderr, time.monotonic()
        self._is_shown, self._is_free = False, True
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._tick, name="progress", daemon=True)
        self._thread.start()

    def make_way(self, text: str) -> None:
        """Erase the line before `text` is written; it is drawn again once the text has ended its own line."""
        if self._is_shown:
            self._write(_ERASE)
            self._is_shown = False
        if text:
            self._is_free = text.endswith(("\n", "\r"))

    def end(self) -> None:
        self._over.set()
        self._thread.join()
        with self.lock:
            self.make_way("")

    def _tick(self) -> None:
        wait = _PATIENCE
        while not self._over.wait(wait):
            wait = _TICK
            with self.lock:
                if self._is_free:
                    self._draw()

    def _draw(self) -> None:
        elapsed = time.monotonic() - self._start
        left = f", about {elapsed / self.share - elapsed:.0f} s left" if 0 < self.share < 1 else ""
        seconds = f" {elapsed:.0f} s{left}"
        room = shutil.get_terminal_size().columns - len(seconds) - 1
        text = self.text if len(self.text) <= room else f"{self.text[: room - 1]}…"
        self._write(f"{_ERASE}{text}{seconds}")
        self._is_shown = True

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()


class _Beside:
    """A stream that erases the progress line before anything is written."""

    def __init__(self, stream: TextIO, line: _Line) -> None:
        self._stream, self._line = stream, line

    def write(self, text: str) -> int:
        with self._line.lock:
            self._line.make_way(text)
            return self._stream.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextmanager
def _log_shown(name: str) -> Iterator[None]:
    """Show the log messages of a package as progress."""
    import logging

    logger, handler = logging.getLogger(name), logging.Handler()
    handler.emit = lambda record: show_progress(record.getMessage())  # type: ignore[method-assign]
    before = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.setLevel(before)
        logger.removeHandler(handler)
