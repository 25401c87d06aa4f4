"""Garbage collection around work that creates many objects and little garbage.

Freezing and unfreezing moves all objects to the oldest generation and resets the counters from which Python decides to
collect it. So the moved objects are counted here, and a full collection is made when they are many: graphs are cyclic,
and a process that captures or loads one after another would keep all of them.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_freezing = threading.Lock()
_frozen: list[int] = []  # the thread that has frozen the garbage collector, if any
_frozen_for_good = threading.Event()  # by a fork server, before it forked this process
_MANY = 10_000  # objects that a collection takes about a millisecond to scan
_MOST = 500_000  # moved objects between two full collections, which take 0.1 to 0.3 s each where torch is loaded
_moved = 0


@contextmanager
def uncollected() -> Iterator[None]:
    """Disable garbage collection while reading or writing, which creates no garbage."""
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        if gc.get_count()[0] > _MANY:  # move them to the oldest generation, so that the next collection skips them
            with _freezing:
                if not _is_frozen():
                    _freeze()
                    gc.unfreeze()
            _collect_many()
        gc.enable()


def freeze_for_good() -> None:
    """Freeze all objects, as a fork server does before it forks; later calls need not count the frozen objects."""
    _frozen_for_good.set()
    gc.freeze()


def _is_frozen() -> bool:
    """Whether objects are frozen; Python counts them one by one, which takes 50 ms for those of torch."""
    return bool(_frozen) or _frozen_for_good.is_set() or gc.get_freeze_count() > 0


def _freeze() -> None:
    global _moved
    young, once, twice = gc.get_count()
    size, several, _ = gc.get_threshold()
    _moved += young + size * (once + several * twice)
    gc.freeze()


def _collect_many() -> None:
    """Collect all garbage if many objects were moved since the last time."""
    global _moved
    if _moved > _MOST:
        _moved = 0
        gc.collect()


@contextmanager
def frozen() -> Iterator[bool]:
    """Make the garbage collector show only objects created from here on; yield False if the user has frozen it."""
    with _freezing:
        is_ours = not _is_frozen()
        if is_ours:
            _frozen.append(threading.get_ident())
            _freeze()
    try:
        yield is_ours
    finally:
        if is_ours:
            with _freezing:
                _frozen.clear()
                gc.unfreeze()
            _collect_many()


def is_frozen_here() -> bool:
    """Whether this thread is inside `frozen`, so that nothing else thaws old objects before it ends."""
    return threading.get_ident() in _frozen


@contextmanager
def unfrozen() -> Iterator[None]:
    """Make the garbage collector show all objects, inside `frozen`."""
    with _freezing:
        if not _frozen:
            yield
            return
        gc.unfreeze()
        try:
            yield
        finally:
            gc.freeze()
