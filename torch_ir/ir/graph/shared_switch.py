"""Settings of the whole process that threads share: the last one restores them, also in a forked child."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any


class _Here(threading.local):
    depth = 0  # how often this thread is inside


class SharedSwitch:
    """Sets a value while any thread is inside; restores the former value unless another was set meanwhile.

    `value` returns the value to set from the former one.
    """

    def __init__(self, read: Callable[[], Any], write: Callable[[Any], Any], value: Callable[[Any], Any]) -> None:
        self.users = 0  # in all threads
        self._read, self._write, self._value = read, write, value
        self._lock = threading.Lock()
        self._here = _Here()
        self._before: Any = None
        self._set: Any = None
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._forget)

    def __enter__(self) -> None:
        with self._lock:
            if not self.users:
                self._before = self._read()
                self._set = self._value(self._before)
            self.users += 1
            self._here.depth += 1
            self._write(self._set)

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._here.depth -= 1
            self._leave(1)

    def _leave(self, count: int) -> None:
        self.users -= count
        if not self.users and self._read() is self._set:
            self._write(self._before)

    def _forget(self) -> None:
        """In a forked child, leave for the threads that do not exist there."""
        self._lock = threading.Lock()
        if others := self.users - self._here.depth:
            self._leave(others)
