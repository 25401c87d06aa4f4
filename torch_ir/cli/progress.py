"""A progress line on stderr, shown after two seconds: the current step, elapsed time, and an estimate of the rest.

While a model runs, the line also names the layer: the thread that draws it looks at the stack of the main thread, so
that capture needs no hooks, which it would have to follow.
"""

from __future__ import annotations

import os
import shutil
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple, TextIO

from torch_ir.errors import printable

if TYPE_CHECKING:
    from torch import nn

_PATIENCE = 2.0  # seconds before the line appears
_TICK = 0.25
_ERASE = "\r\033[K"
_line: _Line | None = None


def show_progress(text: str, done: int = 0, total: int = 0) -> None:
    """Set the text of the progress line; with how much of how much is done, it shows about how long the rest takes."""
    if _line is not None and text:
        _line.text, _line.share = printable(text), done / total if total else 0.0


def watch_layers(model: nn.Module) -> None:
    """Show the layer of a model that runs: the element of its longest list of modules."""
    if _line is not None:
        _line.layers = _layers_of(model)


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


class _Layer(NamedTuple):
    """An element of a list of modules."""

    path: str
    number: int  # from 1
    total: int


def _layers_of(model: nn.Module) -> dict[int, _Layer]:
    """Return the elements of the longest list of modules, by identity; empty if no list has two."""
    lists: dict[str, list[tuple[str, nn.Module]]] = {}
    for path, module in model.named_modules():
        owner, _, last = path.rpartition(".")
        if last.isdecimal():
            lists.setdefault(owner, []).append((path, module))
    longest = max(lists.values(), key=len, default=[])
    found = {id(module): _Layer(path, at, len(longest)) for at, (path, module) in enumerate(longest, 1)}
    return found if len(found) > 1 else {}


class _Line:
    """The progress line and the thread that updates it."""

    def __init__(self, text: str) -> None:
        self.text, self.share = text, 0.0
        self.layers: dict[int, _Layer] = {}
        self._seen: list[tuple[float, float]] = []  # of this pass over the layers: time and share, first and last
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
        now = time.monotonic()
        elapsed, share, text = now - self._start, self.share, self.text
        rest = elapsed / share - elapsed if 0 < share < 1 else None
        if (layer := self._running()) is not None:
            text = f"{text}, {layer.path} ({layer.number} of {layer.total})"
            rest = self._rest_of_pass((layer.number - 1) / layer.total, now)
        seconds = f" {elapsed:.0f} s" + ("" if rest is None else f", about {rest:.0f} s left")
        room = shutil.get_terminal_size().columns - len(seconds) - 1
        text = text if len(text) <= room else f"{text[: room - 1]}…"
        self._write(f"{_ERASE}{text}{seconds}")
        self._is_shown = True

    def _running(self) -> _Layer | None:
        """Return the layer that the main thread runs; None if there is none."""
        frame = sys._current_frames().get(threading.main_thread().ident or 0) if self.layers else None
        while frame is not None:
            found = self.layers.get(id(frame.f_locals.get("self")))
            if found is not None:
                return found
            frame = frame.f_back
        return None

    def _rest_of_pass(self, share: float, now: float) -> float | None:
        """Return the seconds that the other layers take, by those seen so far; a model may run several times."""
        if self._seen and share < self._seen[-1][1]:
            self._seen = []
        self._seen = [*self._seen[:1], (now, share)]
        (start, first), (_, last) = self._seen[0], self._seen[-1]
        return (now - start) * (1 - last) / (last - first) if last > first else None

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
    graph = ""

    def emit(record: logging.LogRecord) -> None:
        """Show a message; one with a `graph` is repeated before those that follow, which are about that graph."""
        nonlocal graph
        text = record.getMessage()
        if getattr(record, "graph", False):
            graph = text
        elif graph:
            text = f"{graph}: {text}"
        show_progress(text, *getattr(record, "share", (0, 0)))

    handler.emit = emit  # type: ignore[method-assign]
    before = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.setLevel(before)
        logger.removeHandler(handler)
