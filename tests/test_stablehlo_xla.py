"""StableHLO modules compute what eager computes: compiled and run with XLA."""

import random
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim

from tests.backend_sweep.cases import DTYPES, operator_cases
from tests.backend_sweep.judging import CRASHED, WRONG
from tests.proof import module
from tests.stablehlo_models.operators import NOT_COMPILED, is_unspecified, verdicts
from tests.stablehlo_models.sweep import ARCHITECTURES, CATALOGUE, EQUAL, NOT_CAPTURED, REFUSED, cases, measure
from tests.stablehlo_models.xla import at_sizes, compiled, execute, run_graph
from torch_ir import ConversionError, extract_ir, optimize, to_stablehlo
from torch_ir.ops.torch_types import TORCH_DTYPES

pytest.importorskip("jax", reason="torch-ir[stablehlo] is not installed")
NAN, INF = float("nan"), float("inf")
ODD = torch.tensor([0.0, -0.0, 1.0, -1.0, 2.5, -2.5, 0.5, -0.5, 7.0, -7.0, NAN, INF, -INF, 3.0])
WHOLE = torch.tensor([0, 1, -1, 7, -7, 5, -5, 2**40, -(2**40), 3, -3])


def both(forward: Any, *inputs: Tensor) -> tuple[list[Tensor], list[Tensor]]:
    """Return the results of XLA and of eager."""
    model = module(forward)
    made = run_graph(extract_ir(model, inputs, strict=False), {}, inputs)
    wanted = model(*inputs)
    return made, list(wanted) if isinstance(wanted, tuple) else [wanted]


def check(forward: Any, *inputs: Tensor) -> None:
    """Compare bit for bit, the signs of zeros included."""
    for made, wanted in zip(*both(forward, *inputs), strict=True):
        torch.testing.assert_close(made, wanted, rtol=0, atol=0, equal_nan=True)
        if wanted.is_floating_point():
            assert torch.equal(made.signbit() & ~made.isnan(), wanted.signbit() & ~wanted.isnan())


def test_signs_of_zeros_and_nan() -> None:
    check(lambda self, x: (x.sign(), x.trunc(), x.round(), x.floor(), x.neg(), x.abs(), x.copysign(-x)), ODD)
    check(lambda self, x, y: (torch.maximum(x, y).isnan(), torch.fmax(x, y), x.nan_to_num()), ODD, ODD.flip(0))


def test_remainders_and_rounded_quotients() -> None:
    """Signs, exact multiples, infinities and zeros, for fractions and whole numbers."""
    some = torch.tensor([3.0, -3.0, 0.7, -0.7, 1.0, -1.0])
    check(lambda self, x, y: (x[:, None] % y, torch.fmod(x[:, None], y)), ODD, some)
    check(lambda self, x, y: torch.div(x[:, None], y, rounding_mode="floor"), ODD, some)
    check(lambda self, x, y: torch.div(x[:, None], y, rounding_mode="trunc"), ODD, some)
    divisors = torch.tensor([3, -3, 1, -1, 7])
    for mode in ("floor", "trunc"):
        check(lambda self, x, y, mode=mode: torch.div(x[:, None], y, rounding_mode=mode), WHOLE, divisors)
    check(lambda self, x, y: (x[:, None] % y, torch.fmod(x[:, None], y), x[:, None] // y), WHOLE, divisors)


def test_conversions() -> None:
    """NaN is true, small integers wrap around, mixed dtypes are promoted as in eager."""
    check(lambda self, x: (x.bool(), x.nan_to_num(0, 0, 0).to(torch.int32), x.double()), ODD)
    check(lambda self, x: (x.to(torch.uint8), x.to(torch.int8), x.float(), x + 0.5, x * True, x / 2), WHOLE)
    check(lambda self, x, y: (x[: len(y)] > y, x[: len(y)] + y, y**3, y < 2.5), ODD, WHOLE)


def test_parts_of_complex_numbers() -> None:
    """A number is finite if both parts are, and infinite if one is."""
    parts = torch.tensor([0.0, 1.0, NAN, INF, -INF])
    x = torch.complex(parts[:, None].expand(5, 5).contiguous(), parts.expand(5, 5).contiguous())
    check(lambda self, x: (x.isfinite(), x.isinf(), x.isnan(), torch.view_as_real(x), x.conj().resolve_conj()), x)


def test_numbers_beyond_an_integer_dtype_wrap_around() -> None:
    check(lambda self, x: (x == 300, x + 300, x * 300, x < 300), torch.tensor([44, 1, -1], dtype=torch.int8))
    check(lambda self, x: (x * -1, x + -1, torch.full_like(x, -1)), torch.tensor([3, 1, 0], dtype=torch.uint8))


def test_no_dimension_to_reduce() -> None:
    """`any` and `all` of no dimension reduce nothing; other reductions of no dimension reduce all."""
    check(lambda self, x: (x.any(()), x.all(()), x.sum(()), x.amax(())), torch.tensor([[0, 1], [2, 0]]))


def test_first_places_of_extrema() -> None:
    """Ties go to the first place, and a NaN is the extremum."""
    rows = torch.tensor([[1.0, 3, 3, 2], [NAN, 1, NAN, 5], [INF, -INF, INF, 0], [2, 2, 2, 2], [-INF] * 4])
    check(lambda self, x: (x.argmax(-1), x.argmin(-1), *x.max(-1), *x.min(-1), x.amax(0), x.argmax()), rows)
    check(lambda self, x: tuple(torch.sort(x, dim=-1, stable=True)), rows)
    check(lambda self, x: tuple(torch.sort(x, dim=-1, stable=True, descending=True)), rows)
    check(lambda self, x: (x.cumsum(-1), x.cumprod(-1)), torch.arange(-6, 6).reshape(3, 4))


def test_indices_count_from_the_end() -> None:
    x, at = torch.randn(5, 4, 3), torch.tensor([0, -1, 3])
    check(lambda self, x, i: (x[i], x[:, i], x[i, i], x[i, :, i % 3], x[i[:, None], i]), x, at)
    check(lambda self, x, i: (x.index_put((i,), x[:3] * 2), x.index_put((i, i), x[0, :3], accumulate=True)), x, at)
    check(lambda self, x, i: (x.gather(0, i[:, None, None].abs().expand(3, 4, 3)), x.index_select(1, i.abs())), x, at)
    check(lambda self, x, m: x.masked_scatter(m, x * 2), x, x > 0)


def test_open_sizes_hold_at_every_size() -> None:
    """One text of a transformer layer, refined by XLA to several sizes."""
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, dropout=0.0).eval()
    sizes = {0: Dim("batch", min=1, max=64), 1: Dim("seq", min=3, max=64)}
    ir = extract_ir(layer, (torch.randn(2, 5, 8),), dynamic_shapes={"src": sizes}, strict=False)
    made = to_stablehlo(ir)
    for shape in ((2, 5, 8), (1, 9, 8)):
        x = torch.randn(shape)
        given = [*(layer.state_dict()[key] for key in made.weights), x]
        dtypes = [TORCH_DTYPES[tensor.dtype] for tensor in ir.returns.inputs]
        found = execute(compiled(at_sizes(made.text, given)), given, dtypes)
        torch.testing.assert_close(found[0], layer(x).detach(), atol=1e-5, rtol=1e-4)


def test_an_optimised_graph_in_function_form() -> None:
    """Captured, optimised, folded into functions, written and run."""
    tower = nn.Sequential(*(nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.GELU()) for _ in range(3))).eval()
    x = torch.randn(2, 4)
    ir, _ = optimize(extract_ir(tower, (x,), strict=False, blocks="function"), "full")
    for functions in ("blocks", "all", "none"):
        made = run_graph(ir, tower.state_dict(), [x], to_stablehlo(ir, functions=functions))
        torch.testing.assert_close(made[0], tower(x).detach(), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("name", ["control_flow", "while_loop", "buffer_mutation", "embedding_bag", "fft", "moe"])
def test_models_of_the_catalogue_are_equal(name: str) -> None:
    [case] = [case for case in cases(CATALOGUE) if case.name == name]
    outcome = measure(case)
    assert (outcome.status, outcome.why) == (EQUAL, "")


@pytest.mark.slow
def test_the_whole_catalogue_is_equal() -> None:
    outcomes = [measure(case) for case in cases(CATALOGUE)]
    assert {each.name: each.why for each in outcomes if each.status != EQUAL} == {}


@pytest.mark.slow
def test_architectures_are_equal() -> None:
    """A seeded sample: each is equal to eager, refused with a list, or not captured at all."""
    chosen = random.Random(0).sample(list(cases(ARCHITECTURES)), 24)
    outcomes = [measure(case) for case in chosen]
    assert {each.name: each.why for each in outcomes if each.status not in (EQUAL, REFUSED, NOT_CAPTURED)} == {}
    assert sum(each.status == EQUAL for each in outcomes) >= 20


def _wrong(dtype: str, every: int) -> list[str]:
    bad = (WRONG, CRASHED, NOT_COMPILED)
    return [
        f"{case.name} [{values}] {why}"
        for case in operator_cases(dtype, 0, 1, 1, every)
        for values, verdict, why in verdicts(case)
        if verdict in bad and not is_unspecified(case)
    ]


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [*DTYPES, "complex64"])
def test_operators_on_odd_values(dtype: str) -> None:
    """Every eighth operator of torch's database, on drawn and adversarial values."""
    assert _wrong(dtype, 8) == []


POWERS = torch.tensor([0, 1, 2, 3, 63, 64, 65, 70, 127, 128, 1000, 2**62 + 1, 2**63 - 1, -1, -2, -3, -64, -65])
BASES = torch.tensor([0, 1, -1, 2, 3, -3, 7, -8, 2**33, -(2**63)])


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8])
def test_powers_of_integers(dtype: torch.dtype) -> None:
    """XLA takes the exponent modulo 64."""
    check(lambda self, x, y: (x[:, None] ** y, 3**y), BASES.to(dtype), POWERS.to(dtype))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_conversions_of_fractions_out_of_range(dtype: torch.dtype) -> None:
    """They are the smallest integer of 32 or 64 bits, as on x86; smaller integers wrap around."""
    given = [3e9, 1e20, INF, NAN, 70000.0, 300.0, 2.0**31, 2.0**31 + 1, 2.0**31 - 0.5, 0.5, 9.3e18, 2.0**63]
    kinds = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool)
    check(
        lambda self, x: tuple(x.to(kind) for kind in kinds),
        torch.tensor([*given, *(-x for x in given)], dtype=torch.float64).to(dtype),
    )


PARTS = torch.tensor([0.0, 1.0, -2.0, NAN, INF, -INF])
COMPLEX = torch.complex(PARTS[:, None].expand(6, 6).contiguous(), PARTS.expand(6, 6).contiguous()).flatten()


def test_sums_and_sizes_of_infinite_complex_numbers() -> None:
    """torch multiplies the second summand by 1: an infinity in one part is NaN in the other."""
    as_real = torch.view_as_real
    check(lambda self, x: as_real(x[:, None] + x), COMPLEX)
    check(lambda self, x: as_real(x[:, None] - x), COMPLEX)
    check(lambda self, x: (as_real(torch.add(x, x.flip(0), alpha=2)), as_real(torch.rsub(x, x.flip(0)))), COMPLEX)
    check(lambda self, x: (as_real(x + 1), as_real(1 - x), as_real(x + 2j), x.abs()), COMPLEX)


@pytest.mark.parametrize("function", [lambda self, x: x**x, lambda self, x: x**1.5, lambda self, x: 2**x])
def test_complex_powers_are_refused(function: Any) -> None:
    """XLA's differ for infinities and NaN."""
    with pytest.raises(ConversionError, match="no rule for complex powers"):
        to_stablehlo(extract_ir(module(function), (COMPLEX,), strict=False))


@pytest.mark.parametrize("held", [1e-40, [1.0, 1e-40], [1.0, 1e-40j]])
def test_subnormal_constants_are_refused(held: Any) -> None:
    """XLA flushes them to zero."""
    constant = torch.tensor(held)
    with pytest.raises(ConversionError, match="1e-40 is subnormal in float32, which XLA flushes to zero"):
        to_stablehlo(extract_ir(module(lambda self, x: x + constant), (torch.ones(2),), strict=False))
    small = module(lambda self, x: 1e-40 / x)
    with pytest.raises(ConversionError, match="1e-40 is subnormal"):
        to_stablehlo(extract_ir(small, (torch.ones(2),), strict=False))
    to_stablehlo(extract_ir(small, (torch.ones(2, dtype=torch.float64),), strict=False))


LISTED: dict[str, tuple[Any, tuple[Tensor, ...], list[int]]] = {
    "denormal numbers": (lambda self, x: x > 0, (torch.tensor([1.0, 1e-40, 0.0]),), [1]),
    "products of denormal numbers": (lambda self, x: x * 2, (torch.tensor([1.0, 1e-40, 0.0]),), [1]),
    "complex quotients": (lambda self, x: (1 / x).real, (COMPLEX[[7, 13, 22, 27]],), [2, 3]),
    "complex exponentials": (lambda self, x: x.exp().real, (COMPLEX[[7, 13, 27, 33]],), [2, 3]),
    "complex roots": (lambda self, x: x.sqrt().real, (COMPLEX[[7, 13, 22, 27]],), [2, 3]),
    "complex logarithms": (lambda self, x: x.log().real, (COMPLEX[[7, 13, 22, 27]],), [2, 3]),
}  # fmt: skip


@pytest.mark.parametrize("name", LISTED)
def test_listed_differences_are_the_only_ones(name: str) -> None:
    """docs/stablehlo.md lists these: other elements are equal, and one that becomes equal must leave the list."""
    function, inputs, places = LISTED[name]
    (made,), (wanted,) = both(function, *inputs)
    is_close = torch.isclose(made.double(), wanted.double(), rtol=1e-5, atol=0, equal_nan=True)
    assert (~is_close).nonzero().flatten().tolist() == places
