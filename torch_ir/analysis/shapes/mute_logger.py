"""A logger that is silent while anybody asks for it, in however many threads, and afterwards as it was before."""

from __future__ import annotations

import logging
import threading
from types import TracebackType


class Silence:
    """A context manager that many threads may be inside at once."""

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

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._lock:
            self._inside -= 1
            if self._inside == 0:
                self._logger.disabled = self._was_disabled
