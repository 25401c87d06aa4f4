"""The path of one run through a model's branches on data."""

from __future__ import annotations

from collections.abc import Callable, Sequence

MOST_DECISIONS = 256  # in one run; a loop whose condition is forced never ends


class NoValueError(Exception):
    """Python reads the value of a tensor that has none."""


class EndlessError(Exception):
    """A run with forced outcomes does not end."""


class Path:
    """The outcomes that a run is forced to take, and those that it took.

    After the forced outcomes, a run follows its data; without data it takes False if `may_choose`. With `is_retraced`,
    its graph goes through torch's functionalisation even without writes.
    """

    def __init__(self, forced: Sequence[bool] = (), *, may_choose: bool = False, is_retraced: bool = False) -> None:
        self.forced = tuple(forced)
        self.may_choose = may_choose
        self.is_retraced = is_retraced
        self.taken: list[bool] = []
        self.has_chosen = False  # an outcome without data

    @property
    def is_hypothetical(self) -> bool:
        """Whether the run takes outcomes that the data may not have."""
        return bool(self.forced) or self.has_chosen

    def take(self, actual: Callable[[], bool] | None) -> bool:
        """Return the outcome of the next decision; `actual` reads it from the data, if there is any."""
        if len(self.taken) == MOST_DECISIONS:
            raise EndlessError(f"Python branches on data more than {MOST_DECISIONS} times in one run")
        if len(self.taken) < len(self.forced):
            outcome = self.forced[len(self.taken)]
        elif actual is not None:
            outcome = actual()
        elif self.may_choose:
            outcome, self.has_chosen = False, True
        else:
            raise NoValueError("Python branches on it")
        self.taken.append(outcome)
        return outcome

    def again(self) -> Path:
        """Return the same path from its start."""
        self.taken.clear()
        return self
