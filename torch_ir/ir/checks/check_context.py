"""What the parts of a graph are judged by: limits, the sizes that have names, and what expressions read."""

from __future__ import annotations

from collections.abc import Iterable

from torch_ir.errors import ExpressionError, GraphError, suggestion
from torch_ir.ir.checks.limits import Limits, allow_more
from torch_ir.ir.sizes.expressions import TooLargeError, names_in


class _NamesRead(dict[str, frozenset[str]]):
    """The symbols that each expression reads, as long as there is room for more."""

    def __init__(self, limits: Limits) -> None:
        self._limit = self._room = limits.expression_bytes

    def __missing__(self, text: str) -> frozenset[str]:
        self._room -= len(text)
        if self._room < 0:
            message = f"all expressions together have more than {self._limit} characters"
            raise GraphError(message, rule="R2", hint=allow_more("expression_bytes"))
        try:
            self[text] = names = names_in(text)
        except ExpressionError as error:
            rule = "R2" if isinstance(error, TooLargeError) else "R1"
            raise GraphError(str(error), rule=rule) from None
        return names


class Known:
    """Limits and symbols; a function knows those of the graph around it, too."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.symbols: frozenset[str] = frozenset()
        self._names_read = _NamesRead(limits)

    def inside(self, symbols: Iterable[str]) -> Known:
        """What is known in a graph that has these symbols of its own."""
        inner = Known(self.limits)
        inner.symbols = self.symbols.union(symbols)
        inner._names_read = self._names_read
        return inner

    def check_expression(self, text: str, place: str, path: str) -> None:
        """An expression is in the language, and speaks of known symbols only."""
        try:
            unknown = self._names_read[text] - self.symbols
            if unknown:
                name = min(unknown)
                message = f"{str(text)!r:.80} speaks of an unknown symbol {name!r}"
                raise GraphError(message, rule="R8", hint=suggestion(name, self.symbols))
        except GraphError as error:
            error.prefix(path, f"{place}: ")
            raise
