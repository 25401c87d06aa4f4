"""A target that is not a module: its seeds, and the check of one input."""

from collections.abc import Callable
from typing import NamedTuple


class Target(NamedTuple):
    """A target with the interface of the target modules."""

    seeds: Callable[[], list[bytes]]
    check: Callable[[bytes], None]
