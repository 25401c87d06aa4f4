"""Suppress what torch prints, logs and warns about its internals during a capture, in this thread only."""

from __future__ import annotations

import io
import logging
import re
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from torch_ir.capture.instrument import exclusive, intercepted, set_attribute, undone
from torch_ir.ops.torch_internals import EXPORT_LOGGERS

_CHATTY = ("torch.fx.experimental.symbolic_shapes", "torch.export", *EXPORT_LOGGERS)
_BELOW_CHATTY = tuple(f"{name}." for name in _CHATTY)
_IGNORED = (".*LeafSpec.*", ".*assigned during export.*")


class _Here(threading.local):
    held: io.StringIO | None = None  # buffers what this thread writes to stderr


_here = _Here()


class _StderrByThread:
    """Writes to the buffer of a quiet thread, else to the original stream."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(_here.held or self._stream, name)


class _MessageHere:
    """The pattern of a warning; it matches only in a quiet thread."""

    def __init__(self, pattern: str) -> None:
        self._pattern = re.compile(pattern, re.IGNORECASE)

    def match(self, text: str) -> bool:
        return _here.held is not None and self._pattern.match(text) is not None


@contextmanager
def quiet() -> Iterator[None]:
    """Suppress messages about torch's internals; what the model writes to stderr is printed after success.

    Other threads are not affected.
    """
    outer, held = _here.held, io.StringIO()
    with exclusive(), ExitStack() as stack:
        stack.enter_context(intercepted(logging.Logger, "handle", _without_chatter))
        for pattern in _IGNORED:
            stack.enter_context(_ignored(_MessageHere(pattern)))
        if sys.stderr is not None:
            stack.enter_context(set_attribute(sys, "stderr", _StderrByThread(sys.stderr)))
        stack.callback(setattr, _here, "held", outer)
        _here.held = held
        yield
    if sys.stderr is not None:
        sys.stderr.write(held.getvalue())


def _without_chatter(original: Callable[..., Any], logger: logging.Logger, record: logging.LogRecord) -> Any:
    is_chatter = logger.name in _CHATTY or logger.name.startswith(_BELOW_CHATTY)
    return None if is_chatter and record.levelno < logging.CRITICAL else original(logger, record)


@contextmanager
def _ignored(message: Any) -> Iterator[None]:
    """Ignore warnings with this message; `catch_warnings` would undo changes that other threads make to the filters."""
    entry: Any = ("ignore", message, Warning, None, 0)
    filters: Any = warnings.filters

    def undo() -> None:
        current: Any = warnings.filters  # another thread may have replaced the list by a copy
        for entries in (filters, current):
            entries[:] = [each for each in entries if each is not entry]

    with undone(undo):
        filters.insert(0, entry)
        yield
