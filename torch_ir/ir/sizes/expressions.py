"""Dimension expressions: a closed language of numbers, names and arithmetic, parsed and computed without `eval`.

    "batch"    "2*seq + 1"    "(seq - 1) // 2"    "max(batch, 2)"    "seq % 2 == 0 and seq != 4"

Operators and precedence are Python's; comparisons cannot be chained. An expression has at most `MAX_LENGTH` characters
and `MAX_DEPTH` levels, and its integers are bounded, so that evaluating it is always quick.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, NamedTuple, Union

from torch_ir.errors import ConversionError, ExpressionError, did_you_mean

Number = Union[int, float, bool]


class TooLargeError(ExpressionError):
    """An expression exceeds the limits on length or depth."""


class Call(NamedTuple):
    """Apply an operator or function to the topmost `arity` values."""

    function: Callable[..., Number]
    arity: int


class Skip(NamedTuple):
    """Short-circuit `and` or `or`: if the left side is `when`, keep it and jump to `to`, else drop it."""

    when: bool
    to: int


# One postfix step: push a number, push the value of a name, call a function on the last few values, or skip ahead.
Step = Union[int, float, bool, str, Call, Skip]
Program = tuple[Step, ...]

MAX_LENGTH = 20_000
MAX_DEPTH = 100
MAX_EXPONENT = 64
MAX_BITS = 4096  # of intermediate results
MAX_DIGITS = 100  # of a number
_SHORT = 200  # characters; most expressions are shorter
_COMPARISON = 4

_TOKEN = re.compile(
    r" *(?:(?P<number>[0-9]+(?:\.[0-9]*)?(?:[eE][+-]?[0-9]+)?)"
    r"|(?P<name>[A-Za-z_]\w*)|(?P<sign>\*\*|//|<=|>=|==|!=|[-+*/%()<>,]))"
)


def _power(base: Number, exponent: Number) -> Number:
    if abs(exponent) > MAX_EXPONENT:
        raise ExpressionError(f"exponent {exponent} is larger than {MAX_EXPONENT}")
    if isinstance(base, int) and base.bit_length() * exponent > MAX_BITS:
        raise ExpressionError(f"a power has more than {MAX_BITS} bits")
    power: Any = base**exponent
    if isinstance(power, complex):
        raise ExpressionError(f"a negative number to the power of {exponent} is not real")
    return power  # type: ignore[no-any-return]  # checked above: int or float


def _round(number: Number, digits: int | None = None) -> Number:
    if digits is not None and abs(digits) > MAX_DIGITS:
        raise ExpressionError(f"cannot round to {digits} digits")
    return round(number, digits)


_EITHER = {"or": 1, "and": 2}
_BINARY: dict[str, tuple[int, Callable[[Any, Any], Number]]] = {
    "==": (_COMPARISON, operator.eq),
    "!=": (_COMPARISON, operator.ne),
    "<": (_COMPARISON, operator.lt),
    "<=": (_COMPARISON, operator.le),
    ">": (_COMPARISON, operator.gt),
    ">=": (_COMPARISON, operator.ge),
    "+": (5, operator.add),
    "-": (5, operator.sub),
    "*": (6, operator.mul),
    "/": (6, operator.truediv),
    "//": (6, operator.floordiv),
    "%": (6, operator.mod),
    "**": (8, _power),
}
_UNARY: dict[str, tuple[int, Callable[[Any], Number]]] = {
    "not": (3, operator.not_),
    "-": (7, operator.neg),
    "+": (7, operator.pos),
}
FUNCTIONS: dict[str, Callable[..., Number]] = {
    "min": min,
    "max": max,
    "abs": abs,
    "int": int,
    "float": float,
    "bool": bool,
    "round": _round,
    "trunc": math.trunc,
    "floor": math.floor,
    "ceil": math.ceil,
    "sqrt": math.sqrt,
    "exp": math.exp,
    "log": math.log,
    "log2": math.log2,
    "sin": math.sin,
    "cos": math.cos,
    "tan": math.tan,
    "tanh": math.tanh,
    "where": lambda condition, yes, no: yes if condition else no,
}
_WORDS = {"True": True, "False": False, "inf": math.inf, "nan": math.nan}
KEYWORDS = frozenset([*FUNCTIONS, *_WORDS, *_EITHER, "not"])
# how the function of a `Call` is printed
SIGNS: dict[Callable[..., Number], str] = {
    **{function: sign for sign, (_, function) in _BINARY.items()},
    **{function: sign for sign, (_, function) in _UNARY.items()},
    **{function: name for name, function in FUNCTIONS.items()},
}
_STRENGTH = {**_EITHER, **{sign: strength for sign, (strength, _) in _BINARY.items()}}


class Expr(str):
    """A symbolic number inside `attrs`: the same text as in a shape, but distinct from an ordinary string."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"Expr({str(self)!r})"


def evaluate(text: str | int, values: Mapping[str, Number]) -> Number:
    """Evaluate an expression; an int evaluates to itself."""
    if not isinstance(text, str):
        return text
    try:
        return _compute(parse(str(text)), values)
    except (ArithmeticError, ValueError, TypeError) as error:
        raise ExpressionError(f"cannot evaluate {str(text)[:80]!r}: {error}") from None


def translate(text: str | int, names: Mapping[str, Any], apply: Callable[[Callable[..., Any], list[Any]], Any]) -> Any:
    """Convert an expression for another evaluator: `names` maps symbols, and `apply` builds each call.

    Nothing is short-circuited: `and` and `or` apply `operator.and_` and `operator.or_` to both sides.
    """
    if not isinstance(text, str):
        return text
    program = parse(str(text))

    def along(at: int, stop: int) -> Any:
        stack: list[Any] = []
        while at < stop:
            step = program[at]
            at += 1
            if isinstance(step, str):
                if step not in names:
                    raise ConversionError(f"undefined symbol {step!r}{did_you_mean(step, names)}")
                stack.append(names[step])
            elif isinstance(step, Call):
                first = len(stack) - step.arity
                stack[first:] = [apply(step.function, stack[first:])]
            elif isinstance(step, Skip):
                stack[-1] = apply(operator.or_ if step.when else operator.and_, [stack[-1], along(at, step.to)])
                at = step.to
            else:
                stack.append(step)
        return stack[0]

    return along(0, len(program))


def names_in(text: str | int) -> frozenset[str]:
    """Return the symbols that an expression reads."""
    if not isinstance(text, str):
        return frozenset()
    return _names_of_short(str(text)) if len(text) <= _SHORT else _names(str(text))


def parse(text: str) -> Program:
    """Parse an expression to postfix steps; an ExpressionError says where it is wrong."""
    if len(text) > MAX_LENGTH:
        raise TooLargeError(f"expression of {len(text)} characters is longer than {MAX_LENGTH}")
    return _parse_short(text) if len(text) <= _SHORT else _parse_long(text)


def _parse(text: str) -> Program:
    return tuple(_Parser(text).whole())


# the steps of a long expression take up to a megabyte, so untrusted files must not fill the cache with them
_parse_short, _parse_long = lru_cache(maxsize=16384)(_parse), lru_cache(maxsize=64)(_parse)


def _names(text: str) -> frozenset[str]:
    return frozenset(step for step in parse(text) if isinstance(step, str))


_names_of_short = lru_cache(maxsize=16384)(_names)


def _compute(program: Program, values: Mapping[str, Number]) -> Number:
    stack: list[Number] = []
    at = 0
    while at < len(program):
        step = program[at]
        at += 1
        if isinstance(step, str):
            if step not in values:
                raise ExpressionError(f"undefined symbol {step!r}{did_you_mean(step, values)}")
            stack.append(values[step])
        elif isinstance(step, Call):
            first = len(stack) - step.arity
            stack[first:] = [_bounded(step.function(*stack[first:]))]
        elif not isinstance(step, Skip):
            stack.append(step)
        elif bool(stack[-1]) is step.when:
            at = step.to
        else:
            stack.pop()
    return stack[0]


def _bounded(number: Number) -> Number:
    if isinstance(number, int) and number.bit_length() > MAX_BITS:
        raise ExpressionError(f"a number has more than {MAX_BITS} bits")
    return number


class _Parser:
    """Precedence-climbing parser that emits postfix steps."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.tokens = self._split(text)
        self.at = 0
        self.depth = 0
        self.steps: list[Step] = []

    def whole(self) -> list[Step]:
        self.binary(0)
        if self.at < len(self.tokens):
            raise self.wrong(f"unexpected {self.tokens[self.at]!r}")
        return self.steps

    def binary(self, least: int) -> None:
        """Parse operators that bind tighter than `least`."""
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise TooLargeError(f"bad expression {self.text[:80]!r}: it is nested deeper than {MAX_DEPTH}")
        self.unary(least)
        last = 0
        while (strength := _STRENGTH.get(sign := self.peek(), 0)) > least:
            if strength == last == _COMPARISON:
                raise self.wrong("comparisons cannot be chained")
            self.at += 1
            if sign in _EITHER:
                self.either(sign, strength)
            else:
                # `**` groups to the right, everything else to the left
                self.binary(strength - (sign == "**"))
                self.steps.append(Call(_BINARY[sign][1], 2))
            last = strength
        self.depth -= 1

    def either(self, sign: str, strength: int) -> None:
        """Parse the right side of `and` or `or`, which is evaluated only if the left does not decide."""
        place = len(self.steps)
        self.steps.append(0)
        self.binary(strength)
        self.steps[place] = Skip(sign == "or", len(self.steps))

    def unary(self, least: int) -> None:
        sign = self.peek()
        if sign == "not" and least >= _UNARY[sign][0]:
            raise self.wrong("'not' needs parentheses here")
        if sign in _UNARY:
            self.at += 1
            strength, function = _UNARY[sign]
            self.binary(strength - 1)
            self.steps.append(Call(function, 1))
        else:
            self.atom()

    def atom(self) -> None:
        token = self.take()
        if token == "(":
            self.binary(0)
            self.expect(")")
        elif token[0].isdigit():
            if len(token) > MAX_DIGITS:
                raise self.wrong(f"a number of more than {MAX_DIGITS} digits")
            number = int(token) if token.isdigit() else float(token)
            if number == math.inf:
                raise self.wrong(f"{token} is too large for a float")
            self.steps.append(number)
        elif token in _WORDS:
            self.steps.append(_WORDS[token])
        elif token in FUNCTIONS:
            self.steps.append(Call(FUNCTIONS[token], self.arguments()))
        elif (token[0].isalpha() or token[0] == "_") and token not in KEYWORDS:
            self.steps.append(token)
        else:
            raise self.wrong(f"unexpected {token!r}")

    def arguments(self) -> int:
        self.expect("(")
        count = 0
        while count == 0 or self.peek() == ",":
            self.at += count > 0
            self.binary(0)
            count += 1
        self.expect(")")
        return count

    def peek(self) -> str:
        return self.tokens[self.at] if self.at < len(self.tokens) else ""

    def take(self) -> str:
        token = self.peek()
        if not token:
            raise self.wrong("unexpected end")
        self.at += 1
        return token

    def expect(self, sign: str) -> None:
        if self.take() != sign:
            raise self.wrong(f"expected {sign!r}")

    def wrong(self, why: str) -> ExpressionError:
        return ExpressionError(f"bad expression {self.text[:80]!r}: {why}")

    def _split(self, text: str) -> list[str]:
        tokens: list[str] = []
        at = 0
        stop = len(text.rstrip(" "))
        while at < stop:
            match = _TOKEN.match(text, at)
            if not match:
                raise self.wrong(f"{text[at:].lstrip(' ')[0]!r} is not a valid character")
            tokens.append(match.group(match.lastgroup or 0))
            at = match.end()
        return tokens
