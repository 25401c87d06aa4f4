"""Silence loggers of other libraries for a while; `capture/quiet.py` does so in one thread only."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from torch_ir.ir.graph.shared_switch import SharedSwitch


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


def silence(name: str) -> SharedSwitch:
    """Return a context that disables a logger while any thread is inside; faster than changing its level."""
    logger = logging.getLogger(name)
    return SharedSwitch(lambda: logger.disabled, lambda disabled: setattr(logger, "disabled", disabled), lambda _: True)
