"""Sums and products of open sizes: like terms are collected, and the value stays."""

import math
import random
from typing import Any

import pytest

from torch_ir.analysis.shapes.size_polynomials import product, total
from torch_ir.ir import evaluate


@pytest.mark.parametrize(
    ("sizes", "wanted"),
    [
        ((), 1),
        ((2, 3), 6),
        ((2, "n", 512), "1024*n"),
        (("n", "m", "n"), "m*n*n"),
        (("2*n + 1", 3), "6*n + 3"),
        (("n - 1", "n + 1"), "n*n - 1"),
        (("-n", 2), "-2*n"),
        (("n // 2", 4), "4*(n // 2)"),
        (("max(n, 2)", "n"), "max(n, 2)*n"),
        (("n", 0), 0),
    ],
)
def test_products_are_multiplied_out(sizes: tuple[Any, ...], wanted: Any) -> None:
    found = product(*sizes)
    assert found == wanted
    expected = 1
    for size in sizes:
        expected *= evaluate(size, {"n": 7, "m": 5})  # type: ignore[assignment]
    assert evaluate(found, {"n": 7, "m": 5}) == expected


def test_a_product_that_would_explode_is_left_as_it_is() -> None:
    """Ten sizes to the power of ten would be 92,378 terms."""
    one = " + ".join("abcdefghij")
    found = product(*[one] * 10)
    assert len(str(found)) < 20_000
    assert evaluate(found, dict.fromkeys("abcdefghij", 1)) == 10**10


def test_sums_gather_equal_terms() -> None:
    assert total(["2*n", 3, "n*m", "n", 4]) == "m*n + 3*n + 7"
    assert total(["n", "-n"]) == 0
    assert total([]) == 0


def test_brackets_do_not_pile_up() -> None:
    """An amount that is added to again and again has its brackets once."""
    amount = total(["seq // 2", 1])
    for _ in range(200):
        amount = product(total([amount, -1, 1]), 1)
    assert amount == "(seq // 2) + 1"
    assert product("seq // 2", "(seq // 2)") == "(seq // 2)*(seq // 2)"


@pytest.mark.parametrize("seed", range(60))
def test_an_expanded_amount_has_its_value(seed: int) -> None:
    """Sums and products over `min`, `max`, `//` and `%` are collected without changing their value."""
    rng = random.Random(seed)

    def drawn(depth: int) -> str:
        if not depth:
            return rng.choice(["a", "b", "2", "3", "7"])
        sign = rng.choice(["+", "-", "*", "//", "%", "min", "max"])
        left, right = drawn(depth - 1), drawn(depth - 1)
        if sign in ("//", "%"):
            return f"({left}) {sign} (1 + ({right}) * ({right}))"
        return f"{sign}({left}, {right})" if sign.isalpha() else f"({left}) {sign} ({right})"

    parts = [drawn(rng.randint(1, 4)) for _ in range(3)]
    for a, b in ((0, 1), (1, 0), (5, 12), (1000, 3)):
        values = {"a": a, "b": b}
        numbers = [evaluate(part, values) for part in parts]
        assert evaluate(total(parts), values) == sum(numbers)
        assert evaluate(product(*parts), values) == math.prod(numbers)


def test_like_terms_of_calls_are_collected() -> None:
    assert total(["16*min(n, 10) + 8*min(n, 10)", "min(n, 10)", "4*n"]) == "25*min(n, 10) + 4*n"
    assert total(["seq" + " // 2" * 90]) == f"(seq{' // 2' * 90})"  # too deep with brackets around each call
