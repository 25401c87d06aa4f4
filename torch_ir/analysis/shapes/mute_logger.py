"""Disable a logger while any thread needs that, and restore it afterwards."""

from __future__ import annotations

import logging
import threading


class Silence:
    """A reentrant context manager for many threads."""

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
