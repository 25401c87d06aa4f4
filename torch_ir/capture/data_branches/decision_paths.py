"""The way of one run through the decisions that a model takes on data."""

from __future__ import annotations

from collections.abc import Callable, Sequence

MOST_DECISIONS = 256  # of one run; a loop that is told to go on goes on for ever


class NoValueError(Exception):
    """Python asks for the value of a tensor that has none."""


class EndlessError(Exception):
    """A run that is told which way to go does not come to an end."""


class Path:
    """What a run is told to take, and what it took.

    Beyond what it is told, a run goes where its data leads; without data it takes False, if it may choose at all. With
    `is_retraced`, its graph goes through torch's functionalisation even if it writes to nothing.
    """

    def __init__(self, told: Sequence[bool] = (), *, may_choose: bool = False, is_retraced: bool = False) -> None:
        self.told = tuple(told)
        self.may_choose = may_choose
        self.is_retraced = is_retraced
        self.taken: list[bool] = []

    def take(self, actual: Callable[[], bool] | None) -> bool:
        """The outcome of the next decision; `actual` asks the data, if there is any."""
        if len(self.taken) == MOST_DECISIONS:
            raise EndlessError(f"Python decides on data more than {MOST_DECISIONS} times in one run")
        if len(self.taken) < len(self.told):
            outcome = self.told[len(self.taken)]
        elif actual is not None:
            outcome = actual()
        elif self.may_choose:
            outcome = False
        else:
            raise NoValueError("Python branches on it")
        self.taken.append(outcome)
        return outcome

    def again(self) -> Path:
        """The same way from its start."""
        self.taken.clear()
        return self
