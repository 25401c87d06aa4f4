"""Dimension expressions: the same meaning as in Python, and no other capabilities."""

import math
import re
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from tests.cpu_time import at_most
from torch_ir.errors import ExpressionError
from torch_ir.ir import Expr, evaluate
from torch_ir.ir.sizes.expressions import (
    KEYWORDS,
    MAX_DEPTH,
    MAX_DIGITS,
    MAX_EXPONENT,
    MAX_LENGTH,
    Number,
    names_in,
    parse,
)
from torch_ir.ir.sizes.specialize import substitute
from torch_ir.ir.sizes.symbols import Symbol, solve

NAMES = ("seq", "batch", "_n2")
PYTHON = {
    "where": lambda condition, yes, no: yes if condition else no,
    **{name: getattr(math, name) for name in ("sqrt", "floor", "ceil", "trunc", "inf", "nan")},
    **{function.__name__: function for function in (min, max, abs, int, float, bool, round)},
}

numbers = st.one_of(st.integers(0, 9).map(str), st.sampled_from(["0.5", "2.", "1e2", "10", "True"]))
atoms = st.one_of(numbers, st.sampled_from(NAMES))


def larger(part: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    """Expressions composed without regard to precedence: the text decides the meaning."""
    return st.one_of(
        st.tuples(part, st.sampled_from(["+", "-", "*", "/", "//", "%", "**"]), part).map(" ".join),
        st.tuples(part, st.sampled_from(["+", "-", "*", "/", "//", "%", "**"]), part).map("".join),
        st.tuples(part, st.sampled_from(["<", "<=", ">", ">=", "==", "!=", "and", "or"]), part).map(" ".join),
        st.tuples(st.sampled_from(["-", "+", "- ", "not ", "-(", "not ("]), part).map(_prefixed),
        part.map("({})".format),
        st.tuples(st.sampled_from(["min", "max"]), part, part).map(lambda t: f"{t[0]}({t[1]}, {t[2]})"),
        st.tuples(st.sampled_from(["abs(", "floor(", "ceil(", "int(", "bool(", "round("]), part).map(_prefixed),
        st.tuples(part, part, part).map(lambda t: f"where({t[0]},{t[1]},{t[2]})"),
    )  # fmt: skip


def _prefixed(pair: tuple[str, str]) -> str:
    sign, part = pair
    return f"{sign}{part})" if sign.endswith("(") else f"{sign}{part}"


texts = st.recursive(atoms, larger, max_leaves=12)
values = st.fixed_dictionaries({name: st.integers(-20, 20) for name in NAMES})


@settings(max_examples=400, deadline=None)
@given(texts, values)
@example("-seq // 3", {"seq": 7, "batch": 1, "_n2": 1})
@example("-seq % 3", {"seq": 7, "batch": 1, "_n2": 1})
@example("-2 ** 2 ** 0", {"seq": 1, "batch": 1, "_n2": 1})
@example("2 ** -seq", {"seq": 1, "batch": 1, "_n2": 1})
@example("seq == 0 or 10 % seq == 0", {"seq": 0, "batch": 1, "_n2": 1})
def test_an_expression_means_what_python_means_by_it(text: str, known: dict[str, int]) -> None:
    """If both accept an expression, value and type are the same; errors in Python are errors here."""
    _check_meaning(text, known)


@pytest.mark.slow
@settings(max_examples=5000, deadline=None)
@given(texts, values)
def test_thousands_of_expressions_mean_what_python_means(text: str, known: dict[str, int]) -> None:
    _check_meaning(text, known)


def _check_meaning(text: str, known: dict[str, int]) -> None:
    """Two things are narrower here: comparisons are not chained, and powers and rounding are bounded."""
    found = _outcome(lambda: evaluate(text, known))
    if isinstance(found, str) and any(word in found for word in ("chained", "exponent", "power", "round to")):
        assume(False)
    expected = _outcome(lambda: eval(text, {"__builtins__": {}}, {**PYTHON, **known}))
    assert type(found) is type(expected)
    assert isinstance(found, str) or found == expected or (found != found and expected != expected)


def _outcome(compute: Callable[[], Number]) -> Number | str:
    """Return a number, or the error message."""
    try:
        return compute()
    except (SyntaxError, ArithmeticError, ValueError, TypeError, ExpressionError) as error:
        return str(error)


@given(texts)
def test_the_names_of_an_expression_are_those_that_it_needs(text: str) -> None:
    """names_in returns exactly the required names."""
    try:
        names = names_in(text)
    except ExpressionError:
        assume(False)
    assert names == set(re.findall("seq|batch|_n2", text))


@settings(max_examples=1000, deadline=None)
@given(texts, values, st.sets(st.sampled_from(NAMES), min_size=1))
@example("_n2 + seq and 3", {"seq": 7, "batch": 1, "_n2": 1}, {"_n2"})
def test_substituting_keeps_the_meaning(text: str, known: dict[str, int], chosen: set[str]) -> None:
    """Substituting some names now and the others later is the same as substituting all at once."""
    expected = _outcome(lambda: evaluate(text, known))
    assume(not isinstance(expected, str))
    try:
        partly = substitute(text, {name: known[name] for name in chosen})
    except ExpressionError:  # a part that is never computed cannot be computed, such as `n // 0`
        return
    found = _outcome(lambda: evaluate(partly, known) if isinstance(partly, str) else partly)
    assert found == expected or (found != found and expected != expected), partly
    assert names_in(partly).isdisjoint(chosen)


@settings(deadline=None)
@given(texts, values)
@example("seq or 0 / 0", {"seq": 1, "batch": 0, "_n2": 0})
def test_renaming_keeps_the_meaning(text: str, known: dict[str, int]) -> None:
    expected = _outcome(lambda: evaluate(text, known))
    assume(not isinstance(expected, str))
    renamed = substitute(text, {name: f"new_{name}" for name in NAMES})
    new = {f"new_{name}": size for name, size in known.items()}
    found = _outcome(lambda: evaluate(renamed, new) if isinstance(renamed, str) else renamed)
    assert found == expected or (found != found and expected != expected), renamed


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("2*batch*seq", "16 * seq"),
        ("seq * batch", "8 * seq"),
        ("(seq - 1)//2 + batch", "((seq - 1) // 2) + 8"),
        ("batch != 4 and seq % 2 == 0", "(seq % 2) == 0"),
        ("batch == 4 and seq > 1", False),
        ("max(batch, seq)", "max(8, seq)"),
        ("batch // 2", 4),
        ("seq", "seq"),
    ],
)
def test_what_is_known_is_computed(text: str, left: Any) -> None:
    assert substitute(text, {"batch": 8}) == left


@pytest.mark.parametrize("sign", ["+", "-", "*", "and", "or"])
def test_what_is_long_stays_flat(sign: str) -> None:
    """A sum of hundreds of sizes is in the language before and after."""
    text = f" {sign} ".join(["seq", *(f"s{index}" for index in range(300)), "batch"])
    left = substitute(text, {"seq": "n", "batch": 8})
    values = dict.fromkeys([f"s{index}" for index in range(300)], 1)
    assert evaluate(left, {**values, "n": 3}) == evaluate(text, {**values, "seq": 3, "batch": 8})
    assert substitute("seq - (batch - 1) + s0", {"seq": "n"}) == "n - (batch - 1) + s0"


def test_numbers_are_their_own_value() -> None:
    """A dimension is an int or a string; both can be evaluated."""
    assert evaluate(7, {}) == 7
    assert names_in(7) == frozenset()
    assert evaluate(Expr("2*seq"), {"seq": 4}) == 8
    assert names_in(Expr("2*seq + min(batch, 3)")) == {"seq", "batch"}


def test_what_the_left_side_decides_is_not_computed() -> None:
    """As in Python, `and` and `or` stop at the first side that decides."""
    assert evaluate("x == 0 or 10 % x == 1", {"x": 0}) is True
    assert evaluate("x != 0 and 10 % x == 1", {"x": 0}) is False
    assert evaluate("0 or 7", {}) == 7
    assert evaluate("2 and 0 or 5", {}) == 5
    with pytest.raises(ExpressionError, match="modulo by zero"):
        evaluate("x == 1 or 10 % x == 1", {"x": 0})


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "unexpected end"),
        ("   ", "unexpected end"),
        ("a b", "unexpected 'b'"),
        ("a +", "unexpected end"),
        ("(a", "unexpected end"),
        ("a)", "unexpected ')'"),
        ("()", "unexpected ')'"),
        ("a < b < c", "comparisons cannot be chained"),
        ("a == b != c", "comparisons cannot be chained"),
        ("1 + not a", "'not' needs parentheses here"),
        ("a == not b", "'not' needs parentheses here"),
        ("and", "unexpected 'and'"),
        ("max", "unexpected end"),
        ("max()", "unexpected ')'"),
        ("f(1)", "unexpected '('"),
        ("a.b", "'.' is not a valid character"),
        ("a[0]", "'[' is not a valid character"),
        ("a $ b", "'$' is not a valid character"),
        ("a = 1", "'=' is not a valid character"),
        ("lambda: 1", "':' is not a valid character"),
        ("__import__('os')", '"\'" is not a valid character'),
        ("a if b else c", "unexpected 'if'"),
        ("\u0663 + 1", "'\u0663' is not a valid character"),
        ("1_000", "unexpected '_000'"),
    ],
)
def test_refused(text: str, why: str) -> None:
    """Anything but arithmetic on numbers and names does not parse; the message says why."""
    with pytest.raises(ExpressionError) as caught:
        parse(text)
    assert why in str(caught.value)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("1 // 0", "division"),
        ("sqrt(0 - 1)", "math domain error"),
        ("ceil(inf)", "infinity"),
        ("max(1)", "not iterable"),
        ("where(1, 2)", "argument"),
        ("exp(1000)", "range"),
        ("float(9**64 * 9**64 * 9**64 * 9**64 * 9**64 * 9**64)", "too large"),
        ("(0-8) ** 0.5", "not real"),
        ("seqq + 1", "undefined symbol 'seqq'; did you mean 'seq'?"),
    ],
)
def test_cannot_be_computed(text: str, why: str) -> None:
    """Every failure of an evaluation is the same type of error."""
    with pytest.raises(ExpressionError) as caught:
        evaluate(text, {"seq": 3})
    assert why in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        "2 ** 65",
        "9**9**9",
        "((((9**64)**64)**64)**64)**64",
        "round(1, 0-9999999999)",
        "1" * (MAX_DIGITS + 1),
        "0." + "1" * MAX_DIGITS,
        "1 + " * MAX_LENGTH + "1",
        "(" * (MAX_DEPTH + 1) + "1" + ")" * (MAX_DEPTH + 1),
        "-" * (MAX_DEPTH + 1) + "1",
        "2**" * MAX_DEPTH + "1",
        "9" * 6000,
        "a" * (MAX_LENGTH + 1),
    ],
)
def test_limits(text: str) -> None:
    """Length, depth, digits and powers are bounded, so that no expression is expensive."""
    with at_most(1), pytest.raises(ExpressionError):
        evaluate(text, {})


def test_what_is_within_the_limits_works() -> None:
    """The bounds are far above the needs of sizes."""
    assert evaluate(f"2 ** {MAX_EXPONENT}", {}) == 2**64
    assert evaluate("(2**63)**64", {}) == 2**4032
    assert evaluate("1" * MAX_DIGITS, {}) == int("1" * MAX_DIGITS)
    deep = MAX_DEPTH - 1
    assert evaluate("(" * deep + "seq" + ")" * deep, {"seq": 3}) == 3
    assert evaluate(" + ".join(["seq"] * 3000), {"seq": 2}) == 6000
    assert evaluate("round(2.567, 2)", {}) == 2.57


def test_keywords_are_no_names() -> None:
    """A symbol cannot have the name of a function or keyword of the language."""
    assert {"and", "or", "not", "max", "inf", "True"} <= KEYWORDS
    assert names_in("maximum + max(1, infinity)") == {"maximum", "infinity"}


def test_an_expr_is_its_text_and_says_what_it_is() -> None:
    """It compares as text, and its repr differs from that of an ordinary string."""
    assert Expr("seq") == "seq"
    assert repr([Expr("seq"), "seq"]) == "[Expr('seq'), 'seq']"


# -- symbols ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("expression", "size", "value"),
    [
        ("seq", 7, 7),
        ("2*seq + 1", 9, 4),
        ("2*seq + 1", 8, None),
        ("seq - batch", 3, 8),
        ("batch*seq", 15, 3),
        ("10 - seq", 3, 7),
        ("seq // 2", 4, None),
        ("seq * seq", 9, None),
        ("batch", 5, None),
        (5, 5, None),
        ("10 // seq", 2, None),
        ("1.5*seq", 6, 4),
    ],
)
def test_solve(expression: int | str, size: int, value: int | None) -> None:
    """The value for which a linear expression equals a given size; None if it is not an integer."""
    assert solve(expression, "seq", size, {"batch": 5}) == value


@given(st.integers(-9, 9).filter(bool), st.integers(-50, 50), st.integers(0, 1000))
def test_solve_undoes_every_linear_expression(slope: int, offset: int, value: int) -> None:
    """solve(evaluate(v)) is v."""
    text = f"{slope}*n + {offset}".replace("+ -", "- ")
    size = evaluate(text, {"n": value})
    assert isinstance(size, int)
    assert solve(text, "n", size, {}) == value


def test_a_symbol_admits_what_is_in_its_range() -> None:
    """Either end may be open; the range is printed as a reader would write it."""
    assert [Symbol("n", 2, 4).admits(value) for value in (1, 2, 4, 5)] == [False, True, True, False]
    assert Symbol("n").admits(-1)
    assert [Symbol("n", *ends).range for ends in ((2, 4), (2, None), (None, 4), ())] == [
        "2 <= n <= 4", "2 <= n", "n <= 4", "n",
    ]  # fmt: skip
