"""Generate names that are not taken yet."""

from __future__ import annotations

from collections import Counter


class FreeNames:
    """A set of taken names; every name returned by `free` is added to it."""

    def __init__(self, taken: set[str]) -> None:
        self.taken = taken
        self._numbers: Counter[str] = Counter()

    def free(self, wanted: str) -> str:
        """Return the name itself if it is free, else the next one of its series: `slice_7` after `slice_6`."""
        name, kind, number = wanted, *wanted.rpartition("_")[::2]
        kind = kind if kind and number.isdigit() else wanted
        while name in self.taken:
            self._numbers[kind] += 1
            name = f"{kind}_{self._numbers[kind]}"
        self.taken.add(name)
        return name
