"""Rules: a pattern, and the function that returns the replacement of a match.

    @rule(op("aten.neg.default", self=op("aten.neg.default", self="x")))
    def two_negations(g, node, x):
        \"\"\"neg(neg(x))  ->  x\"\"\"
        return x

The function gets the builder, the last matched node, and what the pattern captured. It returns the tensor that replaces
the node's output (a tuple for several outputs), `None` to decline the match, or a sentence that says why it declines.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass

from torch_ir.errors import RegistryError, did_you_mean
from torch_ir.rewrite.pattern import Pattern

_OURS = "torch_ir."  # its rules may use operators of newer torch versions
Change = Callable[..., object]  # takes the pattern's captures; the driver checks what it returns


@dataclass(frozen=True)
class Rule:
    """One or several patterns, and the function that replaces their matches."""

    name: str
    patterns: tuple[Pattern, ...]
    change: Change

    @property
    def summary(self) -> str:
        """First line of the function's docstring."""
        return (inspect.getdoc(self.change) or self.name).partition("\n")[0]

    @property
    def is_ours(self) -> bool:
        """Whether this rule is part of torch_ir."""
        return str(getattr(self.change, "__module__", "")).startswith(_OURS)

    def check_names(self) -> None:
        """Raise RegistryError for an operator or argument that torch does not have, if torch is loaded."""
        if not self.is_ours:
            for pattern in self.patterns:
                pattern.check_names(f"rule {self.name!r}")


def rule(*patterns: Pattern) -> Callable[[Change], Rule]:
    """Decorate a function as the rule for these patterns."""

    def decorated(change: Change) -> Rule:
        name = getattr(change, "__name__", type(change).__name__)
        if not patterns:
            raise RegistryError(f"rule {name!r} has no pattern; write @rule(op(...))")
        parameters = inspect.signature(change).parameters.values()
        takes = [parameter.name for parameter in parameters][2:]
        if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
            for word in sorted({word for pattern in patterns for word in pattern.captures} - set(takes)):
                raise RegistryError(
                    f"rule {name!r} captures {word!r}, but its function does not take it{did_you_mean(word, takes)}"
                )
        made = Rule(name, patterns, change)
        made.check_names()
        return made

    return decorated
