"""Concurrent access to one target: writers of different versions, readers between them, threads of one process."""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from tests.faults.killing import Place, forked


@dataclass
class Crowd:
    """Counts of successful saves and loads, and errors of the folder at the end."""

    saves: int = 0
    loads: int = 0
    failed: int = 0
    wrong: str = ""


def writers_and_readers(place: Place, rounds: int, readers: int = 2) -> Crowd:
    """Two processes save their versions over each other while others read without a pause."""
    place.kind.save(place.target, 0)
    with mmap.mmap(-1, 8 * readers + 1) as shared:  # the graphs that each reader loaded, and whether it ended

        def write(version: int) -> Callable[[], None]:
            def work() -> None:
                for _ in range(rounds):
                    place.kind.save(place.target, version)

            return work

        def read(number: int) -> Callable[[], None]:
            def work() -> None:
                loads = 0
                while not shared[-1]:
                    place.kind.read(place.target)
                    loads += 1
                    shared[8 * number : 8 * number + 8] = loads.to_bytes(8, "little")

            return work

        reading = [forked(read(number)) for number in range(readers)]
        writing = [forked(write(version)) for version in (0, 1)]
        failed = sum(_status(child) != 0 for child in writing)
        shared[-1] = 1
        failed += sum(_status(child) != 0 for child in reading)
        loads = sum(int.from_bytes(shared[8 * number : 8 * number + 8], "little") for number in range(readers))
    return Crowd(2 * rounds, loads, failed, _wrong_at_end(place))


def threads(place: Place, workers: int, rounds: int) -> Crowd:
    """Threads of one process save over each other."""
    with ThreadPoolExecutor(workers) as pool:
        for work in [pool.submit(place.kind.save, place.target, number % 2) for number in range(workers * rounds)]:
            work.result()
    return Crowd(workers * rounds, wrong=_wrong_at_end(place))


def _wrong_at_end(place: Place) -> str:
    """One of the versions is there, with all that belongs to it and nothing else."""
    expected = place.expected[place.kind.read(place.target)]
    return "" if place.listed() == expected else f"{place.listed()} is there, not {expected}"


def _status(child: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
