"""Rules: a pattern, and the function that says what stands for what it finds.

    @rule(op("aten.neg.default", self=op("aten.neg.default", self="x")))
    def two_negations(g, node, x):
        \"\"\"neg(neg(x))  ->  x\"\"\"
        return x

The function gets the builder, the last node of what was found, and what the pattern captured. It returns the tensor
that stands for the node's output (a tuple for several outputs), `None` where it does not want the match, or a sentence
that says why.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass

from torch_ir.errors import RegistryError, did_you_mean
from torch_ir.rewrite.pattern import Pattern

_OURS = "torch_ir."  # whose rules may name operators that only newer versions of torch have
Change = Callable[..., object]  # takes what its pattern captures; the driver checks what it returns


@dataclass(frozen=True)
class Rule:
    """What is looked for, in one of several spellings, and what is put in its place."""

    name: str
    patterns: tuple[Pattern, ...]
    change: Change

    @property
    def summary(self) -> str:
        """The first line of what its docstring says."""
        return (inspect.getdoc(self.change) or self.name).partition("\n")[0]

    @property
    def is_ours(self) -> bool:
        """Whether it is part of this package."""
        return str(getattr(self.change, "__module__", "")).startswith(_OURS)

    def check_names(self) -> None:
        """Raise RegistryError for an operator or argument that torch does not have, where torch is loaded."""
        if not self.is_ours:
            for pattern in self.patterns:
                pattern.check_names(f"rule {self.name!r}")


def rule(*patterns: Pattern) -> Callable[[Change], Rule]:
    """Make the decorated function the rule for these patterns."""

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
