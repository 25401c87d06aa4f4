"""Values of options of a `quantization_config` that no list contains: sizes, and patterns of module names."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

_LONGEST = 1000  # characters of a pattern
_STEPS = 20_000_000  # of matching all patterns with one name
_NAME = 100  # characters of a long name
_CHOICES = re.compile(r"\\d[*+]|\\.|(?P<repeats>[*+{])|(?P<branches>[?|])")  # in a regular expression


@dataclass(frozen=True)
class Values:
    """The values of an option: a description, and what they fulfil."""

    text: str
    accept: Callable[[Any], bool]

    def __contains__(self, value: object) -> bool:
        return self.accept(value)


def _is_size(value: Any) -> bool:
    return type(value) is int and 0 < value < 1 << 31


def _is_block(value: Any) -> bool:
    return isinstance(value, (tuple, list)) and len(value) == 2 and all(map(_is_size, value))


def are_names(value: Any) -> bool:
    """Whether this is a list of texts of bounded length, or nothing."""
    return value is None or (
        isinstance(value, (tuple, list)) and all(isinstance(name, str) and len(name) <= _LONGEST for name in value)
    )


def _are_grouped(value: Any) -> bool:
    """Whether these are names, or lists of names."""
    return are_names(value) or (isinstance(value, (tuple, list)) and all(are_names(each) for each in value))


def are_expressions(value: Any) -> bool:
    """Whether these are names and regular expressions that are matched quickly."""
    return are_names(value) and sum(map(_steps, value or ())) <= _STEPS


def _are_targets(value: Any) -> bool:
    """Whether these are names, and regular expressions behind `re:`."""
    return are_names(value) and are_expressions([name[3:] for name in value or () if name.startswith("re:")])


def _steps(pattern: str) -> float:
    """Return a bound on the steps of matching a long name; infinity for a pattern that is wrong or not bounded.

    Without repeated groups, a pattern with r repeats divides a name into r + 1 parts, and each branch doubles the work.
    """
    try:
        re.compile(pattern)
    except (re.error, OverflowError, RecursionError):
        return math.inf
    found = [match.lastgroup for match in _CHOICES.finditer(pattern)]
    repeats, branches = found.count("repeats"), found.count("branches")
    if re.search(r"\)[*+?{]", pattern) or repeats + branches > _LONGEST // 10:
        return math.inf
    return math.comb(_NAME + repeats, repeats) * 2.0**branches


GROUP = Values("a positive integer or -1", lambda value: value == -1 or _is_size(value))
BLOCK = Values("two positive integers or None", lambda value: value is None or _is_block(value))
NAMES = Values("a list of short names", are_names)
EXPRESSIONS = Values("a list of short names and simple regular expressions", are_expressions)
GROUPED_NAMES = Values("a list of short names or of lists of them", _are_grouped)
TARGETS = Values("a list of names, classes and simple regular expressions behind 're:'", _are_targets)
