"""Context of the checks: limits, symbols in scope, and the symbols that each expression reads."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain

from torch_ir.errors import ExpressionError, GraphError, suggestion
from torch_ir.ir.checks.limits import Limits, allow_more
from torch_ir.ir.sizes.expressions import TooLargeError, names_in


class _NamesRead(dict[str, frozenset[str]]):
    """Memoised symbols of each expression, limited by the total length of all expressions."""

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


class CheckContext:
    """Limits and symbols in scope; a function also sees those of the enclosing graph."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self._symbols: tuple[frozenset[str], ...] = ()  # of each graph around, outermost first
        self._names_read = _NamesRead(limits)

    def inside(self, symbols: Iterable[str]) -> CheckContext:
        """Return the context of a graph that defines these symbols."""
        inner = CheckContext(self.limits)
        own = frozenset(symbols)
        inner._symbols = (*self._symbols, own) if own else self._symbols
        inner._names_read = self._names_read
        return inner

    def check_expression(self, text: str, place: str, path: str) -> None:
        """Check that an expression parses and reads only known symbols."""
        try:
            unknown = self._names_read[text]
            for known in self._symbols:
                unknown -= known
            if unknown:
                name = min(unknown)
                message = f"{str(text)!r:.80} reads an undefined symbol {name!r}"
                raise GraphError(message, rule="R8", hint=suggestion(name, chain(*self._symbols)))
        except GraphError as error:
            error.prefix(path, f"{place}: ")
            raise
