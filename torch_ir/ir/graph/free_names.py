"""Names beside those that are taken."""

from __future__ import annotations

from collections import Counter


class FreeNames:
    """Names beside those that are taken; what is given here is taken from then on."""

    def __init__(self, taken: set[str]) -> None:
        self.taken = taken
        self._numbers: Counter[str] = Counter()

    def free(self, wanted: str) -> str:
        """The name itself, else the next of its kind: `slice_7` after `slice_6`."""
        name, kind, number = wanted, *wanted.rpartition("_")[::2]
        kind = kind if kind and number.isdigit() else wanted
        while name in self.taken:
            self._numbers[kind] += 1
            name = f"{kind}_{self._numbers[kind]}"
        self.taken.add(name)
        return name
