"""Silence loggers of other libraries for a while; `capture/quiet.py` does so in one thread only."""

from __future__ import annotations

import logging
import threading
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager


@contextmanager
def quieted(loggers: Iterable[logging.Logger], level: int) -> Iterator[None]:
    """Raise loggers to a level and ignore Python warnings; exceptions are still raised."""
    levels = {logger: logger.level for logger in loggers}
    try:
        for logger in levels:
            logger.setLevel(level)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, before in levels.items():
            logger.setLevel(before)


class Silence:
    """Disables one logger while any thread is inside; faster than changing its level."""

    def __init__(self, logger: str) -> None:
        self._logger = logging.getLogger(logger)
        self._lock = threading.Lock()
        self._inside = 0
        self._was_disabled = False

    def __enter__(self) -> None:
        with self._lock:
            if self._inside == 0:
                self._was_disabled, self._logger.disabled = self._logger.disabled, True
            self._inside += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._inside -= 1
            if self._inside == 0:
                self._logger.disabled = self._was_disabled
