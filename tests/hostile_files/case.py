"""A hostile file: how to write it, how to open it, and the expected result."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

Make = Callable[[Path], Path]  # writes its files to a folder, and returns the one to open

REFUSED = "refused by rule and place"
UNNAMED = "refused, but not by that rule and place"
ESCAPED = "shown, escaped"
BOUNDED = "answered within limits"
LOADED = "loaded"
RAW = "raw Python error"
HUNG = "hung"
MEMORY = "out of memory"
CRASHED = "crashed"
LEAKED = "printed raw"
SIDE_EFFECT = "side effect"
GOOD = (REFUSED, ESCAPED, BOUNDED, LOADED)
OUTCOMES = (*GOOD, UNNAMED, RAW, HUNG, MEMORY, CRASHED, LEAKED, SIDE_EFFECT)


@dataclass(frozen=True)
class Case:
    """One file; `place` must match the path in the error, or its message if the file is not JSON."""

    name: str
    family: str
    make: Make
    rule: str = ""
    place: str = ""
    opens: str = "graph"
    expected: str = REFUSED


class Family(list[Case]):
    """The cases of one kind, in the order in which they are added."""

    def __init__(self, name: str, opens: str = "graph") -> None:
        super().__init__()
        self.name = name
        self.opens = opens

    def refused(self, name: str, make: Make, rule: str, place: str, opens: str = "") -> None:
        """Add a file that must be refused by a rule, at a place."""
        self.append(Case(name, self.name, make, rule, place, opens or self.opens))

    def shown(self, name: str, make: Make) -> None:
        """Add a file that loads, and that no printer may show as it is."""
        self.append(Case(name, self.name, make, opens="printers", expected=ESCAPED))

    def bounded(self, name: str, make: Make) -> None:
        """Add a file that loads; every operation on it must end, with a result or a typed error."""
        self.append(Case(name, self.name, make, opens="questions", expected=BOUNDED))

    def loaded(self, name: str, make: Make, opens: str = "") -> None:
        """Add a file that is in order."""
        self.append(Case(name, self.name, make, opens=opens or self.opens, expected=LOADED))
