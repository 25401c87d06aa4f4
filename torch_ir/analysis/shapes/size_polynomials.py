"""Sums and products of sizes: numbers, or expressions over open sizes.

product(2, "batch", 512)        ->  "1024*batch"
total(["1024*batch", "batch"])  ->  "1025*batch"
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from functools import lru_cache

from torch_ir.ir.json.json_fields import Dim
from torch_ir.ir.sizes.expressions import FUNCTIONS, SIGNS, Call, Number, evaluate, names_in, parse

# A polynomial: maps the sorted factors of each term to its coefficient.
Terms = dict[tuple[str, ...], int]
_LONG = 1000  # characters; longer expressions are not cached
_MOST_TERMS = 1000  # a longer product is not expanded
_MOST_BRACKETS = 30  # of a call inside a sum, as the depth of an expression is limited
_FACTORS = ("min", "max", "//", "%")  # of integers, these are integers


def product(*sizes: Dim) -> Dim:
    """Return the product of sizes."""
    if all(isinstance(size, int) for size in sizes):
        return math.prod(size for size in sizes if isinstance(size, int))
    factors = [_terms(size) for size in sizes]
    if math.prod(map(len, factors)) > _MOST_TERMS:
        factors = [factor if len(factor) < 2 else {(_bracketed(str(_text(factor))),): 1} for factor in factors]
    terms: Terms = {(): 1}
    for factor in factors:
        terms = _times(terms, factor)
    return _text(terms)


def total(sizes: Iterable[Dim]) -> Dim:
    """Return the sum of sizes."""
    sizes = list(sizes)
    number = sum(size for size in sizes if isinstance(size, int))
    expressions = [size for size in sizes if isinstance(size, str)]
    if not expressions:
        return number
    terms: Terms = {(): number}
    for size in expressions:
        _add(terms, _terms(size))
    return _text(terms)


class Sum:
    """A sum to which sizes are added one by one; its text is written only when asked for."""

    def __init__(self) -> None:
        self._number = 0
        self._terms: Terms = {}

    def add(self, size: Dim, times: int = 1) -> None:
        if isinstance(size, int):
            self._number += times * size
            return
        for factors, count in _terms(size).items():
            left = self._terms.get(factors, 0) + times * count
            if left:
                self._terms[factors] = left
            else:
                self._terms.pop(factors, None)

    def size(self) -> Dim:
        return _text(_add({(): self._number}, self._terms)) if self._terms else self._number


def weight_of(size: Dim) -> float:
    """Return an amount as a number, for comparison: open sizes count as 1024."""
    return as_float(number_of(size))


def number_of(size: Dim) -> Number:
    """Return an amount with 1024 for every open size."""
    return size if isinstance(size, int) else evaluate(size, dict.fromkeys(names_in(size), 1024))


def as_float(number: Number) -> float:
    try:
        return float(number)
    except OverflowError:
        return math.inf


def _terms(size: Dim) -> Terms:
    if isinstance(size, int):
        return {(): size}
    return _kept(size) if len(size) < _LONG else _parsed(size)


@lru_cache(maxsize=4096)
def _kept(text: str) -> Terms:
    return _parsed(text)


def _parsed(text: str) -> Terms:
    """Expand an expression of sums and products; `min(a, b)`, `a // b` and the like become factors of them."""
    whole: Terms = {(_bracketed(text),): 1}
    stack: list[Terms] = []
    for step in parse(text):
        if isinstance(step, str):
            stack.append({(step,): 1})
        elif type(step) is int:
            stack.append({(): step})
        elif isinstance(step, Call) and SIGNS[step.function] in ("+", "-", "*"):
            first = len(stack) - step.arity
            stack[first:] = [_applied(SIGNS[step.function], stack[first:])]
        elif isinstance(step, Call) and SIGNS[step.function] in _FACTORS:
            first = len(stack) - step.arity
            factor = _call(SIGNS[step.function], stack[first:])
            if len(factor) > _LONG or factor.count("(") > _MOST_BRACKETS:
                return whole
            stack[first:] = [{(factor,): 1}]
        else:
            return whole
        if len(stack[-1]) > _MOST_TERMS:
            return whole
    return stack[0]


def _bracketed(text: str) -> str:
    """Parenthesise text, unless it already is."""
    depth = 0
    for at, sign in enumerate(text):
        depth += (sign == "(") - (sign == ")")
        if not depth and at < len(text) - 1:
            return f"({text})"
    return text


def _call(sign: str, sides: list[Terms]) -> str:
    texts = [str(_text(side)) for side in sides]
    if sign in FUNCTIONS:
        return f"{sign}({', '.join(texts)})"
    return f"({_operand(texts[0])} {sign} {_operand(texts[1])})"


def _operand(text: str) -> str:
    return text if text.isalnum() or text.isidentifier() else _bracketed(text)


def _applied(sign: str, sides: list[Terms]) -> Terms:
    if sign == "*":
        return _times(*sides)
    last = {factors: -count for factors, count in sides[-1].items()} if sign == "-" else sides[-1]
    return last if len(sides) == 1 else _add(sides[0], last)


def _add(terms: Terms, more: Terms) -> Terms:
    """Add to the first of these in place, as sums may have many terms."""
    for factors, count in more.items():
        terms[factors] = terms.get(factors, 0) + count
    return terms


def _times(one: Terms, other: Terms) -> Terms:
    terms: Terms = Counter()
    for left, count in one.items():
        for right, times in other.items():
            terms[tuple(sorted((*left, *right)))] += count * times
    return terms


def _text(terms: Terms) -> Dim:
    """Return the number, or the expression with the terms of highest degree first."""
    kept = sorted(((factors, count) for factors, count in terms.items() if count), key=lambda t: (-len(t[0]), t[0]))
    if not any(factors for factors, _ in kept):
        return kept[0][1] if kept else 0
    texts = ["*".join([*([str(abs(count))] if abs(count) != 1 or not f else []), *f]) for f, count in kept]
    signs = ["-" if count < 0 else "+" for _, count in kept]
    first = f"-{texts[0]}" if signs[0] == "-" else texts[0]
    return " ".join([first, *(f"{sign} {text}" for sign, text in zip(signs[1:], texts[1:], strict=True))])
