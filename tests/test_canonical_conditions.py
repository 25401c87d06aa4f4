"""Conditions on sizes in one form: equal ones have one text, and each accepts the same sizes as before."""

import itertools
import random
from types import SimpleNamespace
from typing import Any

import pytest
import sympy
from torch.utils._sympy.functions import FloorDiv, Max, Min, Mod

from torch_ir import TensorMeta
from torch_ir.capture.export.canonical_conditions import canonical
from torch_ir.capture.export.symbolic_sizes import Bindings, SymbolNames
from torch_ir.errors import ExpressionError
from torch_ir.ir import evaluate

B, N = (sympy.Symbol(name, integer=True, positive=True) for name in ("b", "n"))
SIZES = (0, 1, 2, 3, 4, 5, 7, 8, 16, 17, 64, 65)  # odd and even, equal ones, and those beyond most bounds
PAD = N + Mod(4 - Mod(N, 4), 4)  # the next multiple of 4


def texts(*conditions: Any) -> list[str]:
    """The constraints of a graph for which torch asked these conditions."""
    names = SymbolNames()
    names.names = {"b": "b", "n": "n"}
    bindings = Bindings(names)
    tensor = TensorMeta("x", ("b", "n"), "float32")
    for dim, symbol in enumerate((B, N)):
        bindings.bind(symbol, tensor, dim)
    guards = [SimpleNamespace(expr=condition) for condition in conditions]
    environment = SimpleNamespace(guards=guards, replacements={}, replace=lambda symbol: symbol)
    return bindings.constraints(environment, [tensor], [])


def accepted(conditions: list[str]) -> list[tuple[int, int]]:
    """The sizes for which all conditions hold; one that is undefined does not hold."""
    return [sizes for sizes in itertools.product(SIZES, SIZES) if all(_holds(text, *sizes) for text in conditions)]


def _holds(text: str, b: int, n: int) -> bool:
    try:
        return bool(evaluate(text, {"b": b, "n": n}))
    except ExpressionError:
        return False


def written(condition: Any) -> str:
    """A condition as torch has it."""
    names = SymbolNames()
    names.names = {"b": "b", "n": "n"}
    return names.write(condition)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (4 * (N + 17) ** 2 * B, sympy.expand(4 * (N + 17) ** 2 * B)),
        (32 * B * (PAD + 4), sympy.expand(32 * B * (PAD + 4))),
        (B * (FloorDiv(N, 10) - 1), B * FloorDiv(N, 10) - B),
        (Max(B * (N + 1), 7), Max(B * N + B, 7)),
    ],
)
def test_one_text_for_factors_and_products(one: Any, other: Any) -> None:
    one, other = (sympy.Gt(number, 7, evaluate=False) for number in (one, other))
    assert written(one) != written(other), "torch writes them differently"
    assert len(texts(one, other)) == 1
    assert texts(one) == texts(other)


def test_the_order_in_which_torch_asks_does_not_matter() -> None:
    asked = [B * (N + 1) >= 5, sympy.Eq(Mod(N, 2), 0), N <= 64, sympy.Ne(B, N)]
    for order in itertools.permutations(asked):
        assert texts(*order) == ["b != n", "n <= 64", "(n % 2) == 0", "(b * (n + 1)) >= 5"]


def test_the_remainder_of_a_multiple_is_no_condition() -> None:
    assert texts(sympy.Eq(Mod(B * FloorDiv(N, 4) + B, B, evaluate=False), 0)) == []
    kept = sympy.Eq(Mod(4 - Mod(N, 4), 4), 0)  # 4 - n % 4 is no multiple of 4
    assert accepted(texts(kept)) == accepted([written(kept)]) != []


def random_number(draw: random.Random, depth: int) -> Any:
    if not depth:
        return draw.choice([B, N])
    left, right = (random_number(draw, depth - 1) for _ in range(2))
    number = sympy.Integer(draw.randint(2, 8))
    kinds = (
        lambda: left + right,
        lambda: left - number,
        lambda: left * right,
        lambda: sympy.expand(left * (right + 1)),
        lambda: FloorDiv(left, number),
        lambda: Mod(left, number, evaluate=False),
        lambda: Mod(number - Mod(left, number), number, evaluate=False),
        lambda: Mod(left * right, right, evaluate=False),
        lambda: Max(left, number),
        lambda: Min(left, right),
    )
    return draw.choice(kinds)()


@pytest.mark.parametrize("seed", range(40))
def test_the_same_sizes_are_accepted(seed: int) -> None:
    """Random conditions, each on 144 pairs of sizes, 0 among them; only a remainder by 0 may become defined."""
    draw = random.Random(seed)
    relation = draw.choice([sympy.Eq, sympy.Ne, sympy.Ge, sympy.Gt, sympy.Le, sympy.Lt])
    condition = relation(random_number(draw, 2), random_number(draw, 2), evaluate=False)
    new = canonical(condition)
    for b, n in itertools.product(SIZES, SIZES):
        try:
            before = evaluate(written(condition), {"b": b, "n": n})
        except ExpressionError:
            continue
        assert bool(evaluate(written(new), {"b": b, "n": n})) == bool(before), (condition, new, b, n)
