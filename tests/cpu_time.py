"""Limits on the CPU time of a block of a test."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

from torch_ir.ir.graph.garbage_collection import uncollected


@contextmanager
def at_most(seconds: float, what: object = "") -> Iterator[None]:
    """Fail if the block takes more CPU time; garbage of earlier tests, which takes seconds, is collected after it."""
    with uncollected():
        started = time.process_time()
        yield
        taken = time.process_time() - started
    assert taken < seconds, what
