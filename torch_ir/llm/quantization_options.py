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
    accepts: Callable[[Any], bool]

    def __contains__(self, value: object) -> bool:
        return self.accepts(value)


def _is_list(value: Any, accepts: Callable[[Any], bool]) -> bool:
    return isinstance(value, (tuple, list)) and all(map(accepts, value))


def _is_size(value: Any) -> bool:
    return type(value) is int and 0 < value < 1 << 31


def _are_names(value: Any) -> bool:
    return value is None or _is_list(value, lambda name: isinstance(name, str) and len(name) <= _LONGEST)


def _are_expressions(value: Any) -> bool:
    return _are_names(value) and sum(map(_steps, value or ())) <= _STEPS


def _are_targets(value: Any) -> bool:
    return _are_names(value) and _are_expressions([name[3:] for name in value or () if name.startswith("re:")])


def _steps(pattern: str) -> float:
    """Return a bound on the steps of matching a long name; infinity for a pattern that is wrong or not bounded.

    Without repeated groups, a pattern with r repeats divides a name into r + 1 parts, and each branch doubles the work.
    """
    try:
        re.compile(pattern)
    except (re.error, OverflowError, RecursionError):
        return math.inf
    if re.search(r"\)[*+?{]", pattern):
        return math.inf
    found = [match.lastgroup for match in _CHOICES.finditer(pattern)]
    repeats, branches = (min(50, found.count(kind)) for kind in ("repeats", "branches"))
    return math.comb(_NAME + repeats, repeats) * 2.0**branches


GROUP = Values("a positive integer or -1", lambda value: value == -1 or _is_size(value))
BLOCK = Values("two positive sizes", lambda value: value is None or (_is_list(value, _is_size) and len(value) == 2))
DICT = Values("a dict", lambda value: value is None or isinstance(value, dict))
NAMES = Values("a list of short names", _are_names)
GROUPED_NAMES = Values(
    "a list of short names or of lists of them", lambda value: _are_names(value) or _is_list(value, _are_names)
)
EXPRESSIONS = Values("a list of short names and simple regular expressions", _are_expressions)
TARGETS = Values("a list of names, classes and simple regular expressions behind 're:'", _are_targets)
