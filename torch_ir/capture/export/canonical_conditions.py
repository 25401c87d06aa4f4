"""A canonical form of conditions on sizes, so that equal conditions have equal text in the graph.

Torch writes the same condition with factors (`b * (n + 1) >= 2`) or expanded (`b * n + b >= 2`), depending on what it
knew about the sizes at that time.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import sympy

_HOLDS_FOR_EQUALS = (sympy.Equality, sympy.LessThan, sympy.GreaterThan)
_REMAINDERS = ("Mod", "PythonMod")  # torch's own


@lru_cache(maxsize=4096)
def canonical(expression: Any) -> Any:
    """Return a condition or number with each polynomial factored into irreducible ones.

    Functions such as `//`, `%` and `max` are treated as unknowns, so that the condition holds for the same sizes. A
    comparison of equal sides becomes `true`, and the remainder of a multiple 0, also if the divisor may be 0.
    """
    if expression.is_Atom:
        return expression
    parts = [canonical(part) for part in expression.args]
    if isinstance(expression, _HOLDS_FOR_EQUALS) and parts[0] == parts[1]:
        return sympy.true
    if expression.is_Add or expression.is_Mul or expression.is_Pow:
        return _factored(expression.func(*parts))
    if type(expression).__name__ in _REMAINDERS and _is_multiple(*parts):
        return sympy.Integer(0)
    return expression if parts == list(expression.args) else expression.func(*parts, evaluate=False)


def _factored(expression: Any) -> Any:
    if not expression.has(sympy.Add) or expression.has(sympy.Float):  # products of floats are rounded
        return expression
    unknowns = sorted(_unknowns(expression), key=sympy.default_sort_key)
    letters = {unknown: sympy.Symbol(f"x{number:03}") for number, unknown in enumerate(unknowns)}
    number, product = sympy.factor(expression.xreplace(letters)).as_coeff_Mul()
    sums = [factor for factor in sympy.Mul.make_args(product) if factor.is_Add]
    if number.is_negative and sums:  # 64 - n, not -(n - 64)
        number, product = -number, product.xreplace({sums[0]: -sums[0]})
    return (number * product).xreplace({letter: unknown for unknown, letter in letters.items()})


def _unknowns(expression: Any) -> set[Any]:
    """Return the parts of a polynomial that are neither numbers nor polynomials."""
    if expression.is_Add or expression.is_Mul:
        return set().union(*map(_unknowns, expression.args))
    if expression.is_Pow and expression.exp.is_Integer and expression.exp > 0:
        return _unknowns(expression.base)
    return set() if expression.is_Rational else {expression}


def _is_multiple(number: Any, divisor: Any) -> bool:
    """Whether a number is the divisor times a polynomial with integer coefficients."""
    ratio = sympy.together(number / divisor)
    return not ratio.has(sympy.Float) and bool(sympy.fraction(ratio)[1] == 1)
