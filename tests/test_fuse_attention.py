"""Attention that is written out becomes the operator, only where both return the same."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from tests.captured import _Function, captured, kinds
from tests.rewriting import optimized, proved
from torch_ir import IRExecutor, extract_ir
from torch_ir.ir import IR
from torch_ir.passes.optimize_levels import CLEAN

SDPA = "aten.scaled_dot_product_attention.default"
QKV = ((2, 4, 6, 8),) * 3
LOW = torch.finfo(torch.float32).min
STEPS = [*CLEAN, "attention"]


def attend(scores: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return scores.softmax(-1) @ v


def scores(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    return q @ k.transpose(-1, -2) * 0.3


def causal() -> torch.Tensor:
    return torch.ones(6, 6, dtype=torch.bool).tril()


def operator(ir: IR) -> Any:
    """The call of the operator, which is the last node."""
    assert ir.nodes[-1].op_type == SDPA, kinds(ir)
    return ir.nodes[-1]


SPELLINGS: dict[str, Callable[..., Any]] = {
    "factor": lambda q, k, v: attend(scores(q, k), v),
    "quotient": lambda q, k, v: attend(torch.matmul(q, k.transpose(2, 3)) / (1 / 0.3), v),
    "scaled query": lambda q, k, v: attend((q * 0.3) @ k.transpose(-1, -2), v),
    "scaled key": lambda q, k, v: attend(q @ (k.transpose(-1, -2) * 0.3), v),
    "both scaled": lambda q, k, v: attend((q * 0.6) @ (k.transpose(-1, -2) * 0.5), v),
    "tensor": lambda q, k, v: attend(q @ k.mT / torch.tensor(1 / 0.3), v),
    "dropout": lambda q, k, v: F.dropout(scores(q, k).softmax(dim=3), 0.1, training=False) @ v,
    "upcast": lambda q, k, v: F.softmax(scores(q, k), dim=-1, dtype=torch.float32).to(q.dtype) @ v,
}


@pytest.mark.parametrize("name", SPELLINGS)
@pytest.mark.parametrize("before", [["propagate-sizes"], list(CLEAN)], ids=["nearly as captured", "clean"])
def test_every_spelling(name: str, before: list[str]) -> None:
    """One call with an explicit scale."""
    after = optimized(captured(SPELLINGS[name], *QKV), [*before, "attention", *before])
    assert math.isclose(operator(after)["scale"], 0.3, rel_tol=1e-6)
    assert (operator(after).args, operator(after)["attn_mask"]) == (("query", "key", "value"), None)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_half_precision(dtype: torch.dtype) -> None:
    """The float32 softmax that models write out is what the operator does internally."""
    ir = captured(SPELLINGS["upcast"], *QKV, dtype=dtype)
    assert operator(optimized(ir, STEPS)).output.dtype == str(dtype).removeprefix("torch.")


def test_batches_of_matrices() -> None:
    """bmm and baddbmm, in three dimensions; the operand added by baddbmm is a mask."""
    shapes = ((4, 6, 8),) * 3
    assert operator(optimized(captured(lambda q, k, v: torch.bmm(torch.bmm(q, k.mT).softmax(-1), v), *shapes), STEPS))
    ir = captured(
        lambda q, k, v: torch.bmm(torch.baddbmm(torch.ones(4, 6, 6), q, k.mT, alpha=0.3).softmax(-1), v), *shapes
    )
    assert operator(optimized(ir, STEPS))["scale"] == 0.3


def test_a_scaled_sum_of_scores_and_a_mask_stays() -> None:
    """(mask + q k) * 0.3 scales the mask too, unlike the operator."""
    ir = captured(
        lambda q, k, v: torch.bmm((torch.baddbmm(torch.eye(6).expand(4, 6, 6), q, k.mT) * 0.3).softmax(-1), v),
        *((4, 6, 8),) * 3,
    )
    assert all(node.op_type != SDPA for node in optimized(ir, STEPS).nodes)


def test_what_it_stands_for_is_told() -> None:
    """The captured nodes from the product of queries and keys on are its origins."""
    ir = captured(SPELLINGS["factor"], *QKV)
    after = optimized(ir, STEPS)
    assert set(operator(after).origins) >= {"matmul", "mul", "softmax", "matmul_1"}


KNOWN: dict[str, tuple[Callable[..., Any], bool]] = {
    "added": (lambda q, k, v: attend(scores(q, k) + torch.full((6, 6), -math.inf).triu(1), v), True),
    "low": (lambda q, k, v: attend(scores(q, k) + torch.full((6, 6), LOW).triu(1), v), True),
    "filled": (lambda q, k, v: attend(scores(q, k).masked_fill(~causal(), -math.inf), v), True),
    "where": (lambda q, k, v: attend(torch.where(causal(), scores(q, k), LOW), v), True),
    "full": (lambda q, k, v: attend(scores(q, k) + torch.zeros(6, 6), v), False),
    "operator": (lambda q, k, v: F.scaled_dot_product_attention(q, k, v, causal(), scale=0.3), True),
}


@pytest.mark.parametrize("name", KNOWN)
def test_a_mask_that_is_known(name: str) -> None:
    """A causal mask becomes `is_causal`, and one that masks nothing is removed."""
    function, is_causal = KNOWN[name]
    call = operator(optimized(captured(function, *QKV), STEPS))
    assert (call["is_causal"], call["attn_mask"]) == (is_causal, None)


@pytest.mark.parametrize("scale", [-0.3, 0.0])
def test_a_causal_mask_stays_where_the_scale_is_not_positive(scale: float) -> None:
    """torch's kernels multiply the infinities of `is_causal` by the scale: NaN."""
    ir = captured(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, causal(), scale=scale), *QKV)
    assert operator(optimized(ir, STEPS))["is_causal"] is False


def test_a_mask_that_is_nearly_causal_stays_a_mask() -> None:
    """One place more than the triangle."""
    ir = captured(lambda q, k, v: attend(scores(q, k).masked_fill(torch.ones(6, 6).bool().triu(2), -math.inf), v), *QKV)
    call = operator(optimized(ir, STEPS))
    assert (call["is_causal"], call["attn_mask"].dtype) == (False, "bool")


MASK = (*QKV, (2, 1, 1, 6))


@pytest.mark.parametrize(
    "function",
    [
        lambda q, k, v, m: attend(scores(q, k) + torch.where(m > 0, 0.0, LOW), v),
        lambda q, k, v, m: attend(scores(q, k) + (1.0 - (m > 0).to(q.dtype)) * LOW, v),
        lambda q, k, v, m: attend(scores(q, k).masked_fill(m > 0, LOW), v),
        lambda q, k, v, m: attend(torch.where(m > 0, scores(q, k), LOW), v),
    ],
    ids=["where", "one minus", "masked_fill", "where of scores"],
)
def test_a_mask_of_finite_numbers(function: Callable[..., Any]) -> None:
    """Fully masked rows are the mean of all values in both; here about one in sixty."""
    after = optimized(captured(function, *MASK), STEPS)
    assert operator(after)["attn_mask"].dtype == "float32"


@pytest.mark.parametrize(
    ("function", "why"),
    [
        (lambda q, k, v, m: attend(scores(q, k) + m, v), "would yield zeros, not NaN"),
        (lambda q, k, v, m: attend(scores(q, k).masked_fill(m > 0, -math.inf), v), "would yield zeros, not NaN"),
        (lambda q, k, v, m: attend(scores(q, k).masked_fill(m > 0, -100.0), v), "would yield zeros, not NaN"),
        (lambda q, k, v, m: attend(scores(q, k[:1]), v), "do not have the same batch and heads"),
        (
            lambda q, k, v, m: attend(scores(q[:1], k[:1]) + torch.where(m > 0, 0.0, LOW), v[:1]),
            "the mask broadcasts the scores to a larger shape",
        ),
        (lambda q, k, v, m: attend(scores(q, k).double(), v.double()), "do not have the same dtype"),
    ],
    ids=["input", "-inf", "a small number", "broadcast", "a mask of more batches", "another dtype"],
)
def test_what_is_declined(function: Callable[..., Any], why: str) -> None:
    """If results would or might differ, nothing changes, and the report says why."""
    after, report = proved(captured(function, *MASK), STEPS)
    assert SDPA not in kinds(after)
    assert any(why in decline.why for decline in report.declined if decline.rule == "attention")


@pytest.mark.parametrize(
    "function",
    [
        lambda q, k, v: attend((scores(q, k) + torch.ones(6, 6)) * 2, v),
        lambda q, k, v: scores(q, k).softmax(-2) @ v,
        lambda q, k, v: scores(q, k).softmax(-1) + v @ v.mT,
        lambda q, k, v: attend(scores(q, k).exp(), v),
    ],
    ids=["mask is scaled", "softmax over queries", "no values", "another score"],
)
def test_what_is_no_attention_stays(function: Callable[..., Any]) -> None:
    """Similar nodes that compute something else."""
    assert SDPA not in kinds(optimized(captured(function, *QKV), STEPS))


def repeat(x: torch.Tensor, count: int) -> torch.Tensor:
    batch, heads, length, size = x.shape
    return x[:, :, None].expand(batch, heads, count, length, size).reshape(batch, heads * count, length, size)


@pytest.mark.parametrize("heads", [1, 2])
@pytest.mark.parametrize("before", [[], list(CLEAN)], ids=["as captured", "clean"])
def test_heads_that_are_shared(heads: int, before: list[str]) -> None:
    """Keys and values are not copied for every head of the query; results are equal to the last bit."""
    shapes = ((2, 4, 6, 8), (2, heads, 6, 8), (2, heads, 6, 8))
    ir = captured(
        lambda q, k, v: F.scaled_dot_product_attention(q, repeat(k, 4 // heads), repeat(v, 4 // heads)), *shapes
    )
    after = optimized(ir, [*before, "attention", *before], exact=True)
    assert (kinds(after), operator(after)["enable_gqa"]) == ([SDPA], True)


def test_heads_that_are_put_one_after_the_other_are_not_shared() -> None:
    """`repeat` puts all heads after all heads, which is another order."""
    shapes = ((2, 4, 6, 8), (2, 2, 6, 8), (2, 2, 6, 8))
    ir = captured(
        lambda q, k, v: F.scaled_dot_product_attention(q, k.repeat(1, 2, 1, 1), v.repeat(1, 2, 1, 1)), *shapes
    )
    assert not operator(optimized(ir, STEPS))["enable_gqa"]


def test_open_sizes() -> None:
    """The length of the sequence may be open: heads are shared, and scores are recognised."""
    shapes = ((2, 4, 6, 8), (2, 2, 6, 8), (2, 2, 6, 8))
    ir = captured(lambda q, k, v: attend(scores(q, repeat(k, 2)), repeat(v, 2)), *shapes, open_dim=2)
    call = operator(optimized(ir, STEPS))
    assert (call["enable_gqa"], call["query"].is_static) == (True, False)


def test_weights_that_the_model_returns() -> None:
    """They would have to be computed a second time, beside the operator."""
    ir = captured(lambda q, k, v: (lambda w: (w @ v, w))(scores(q, k).softmax(-1)), *QKV)
    after, report = proved(ir, STEPS)
    assert SDPA not in kinds(after)
    assert any("is read elsewhere too" in decline.why for decline in report.declined)


def test_a_scaled_query_that_others_read_stays_scaled() -> None:
    """It is there anyway."""
    ir = captured(lambda q, k, v: (lambda w: (attend(w @ k.mT, v), w + 1))(q * 0.3), *QKV)
    after = optimized(ir, STEPS)
    assert next(node["scale"] for node in after.nodes if node.op_type == SDPA) == 1.0


def masked(function: Callable[..., Any], dtype: torch.dtype) -> IR:
    """The graph of attention with a boolean mask that is known only in a run."""
    module = _Function(function).eval()
    given = [torch.empty(shape, dtype=dtype, device="meta") for shape in QKV]
    return extract_ir(module, (*given, torch.empty(2, 1, 6, 6, dtype=torch.bool, device="meta")))


HALF: dict[str, tuple[Callable[..., Any], set[str]]] = {
    # the written form, and the dtypes in which the operator computes the same, also for fully masked rows
    "filled in float32": (
        lambda q, k, v, m: attend(scores(q, k).float().masked_fill(~m, LOW), v.float()).to(q.dtype), set()
    ),
    "softmax in float32": (
        lambda q, k, v, m: scores(q, k).float().masked_fill(~m, LOW).softmax(-1).to(q.dtype) @ v, {"bfloat16"}
    ),
    "-1e30 in float32": (
        lambda q, k, v, m: scores(q, k).float().masked_fill(~m, -1e30).softmax(-1).to(q.dtype) @ v, {"bfloat16"}
    ),
    "least number": (
        lambda q, k, v, m: attend(scores(q, k).masked_fill(~m, torch.finfo(q.dtype).min), v), {"bfloat16"}
    ),
    "filled in float32, cast to infinity": (
        lambda q, k, v, m: attend(scores(q, k).float().masked_fill(~m, LOW).to(q.dtype), v), set()
    ),
    "one minus, -1e9": (lambda q, k, v, m: attend(scores(q, k) + (1 - m.to(q.dtype)) * -1e9, v), set()),
    "one minus, -1e4": (lambda q, k, v, m: attend(scores(q, k) + (1 - m.to(q.dtype)) * -1e4, v), set()),
    "one minus, least": (
        lambda q, k, v, m: attend(scores(q, k) + (1 - m.to(q.dtype)) * torch.finfo(q.dtype).min, v), {"bfloat16"}
    ),
}  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", HALF)
def test_masks_in_half_precision(name: str, dtype: torch.dtype) -> None:
    """Rows that are masked as a whole are the mean of all values, or NaN, in eager: so they are afterwards."""
    function, wanted = HALF[name]
    ir = masked(function, dtype)
    after = optimized(ir, STEPS)
    assert (SDPA in kinds(after)) is (str(dtype).removeprefix("torch.") in wanted)
    values = [torch.randn(shape, generator=torch.Generator().manual_seed(seed)) for seed, shape in enumerate(QKV)]
    mask = torch.ones(2, 1, 6, 6, dtype=torch.bool)
    mask[0, :, 0] = mask[1, :, 3] = False
    given = [*(value.to(dtype) for value in values), mask]
    got, expected = IRExecutor(after, {})(*given), function(*given)
    assert torch.equal(got.isnan(), expected.isnan())
    assert torch.allclose(got.nan_to_num(), expected.nan_to_num(), atol=0.02)


@pytest.mark.parametrize(
    "function",
    [
        lambda q, k, v: attend(scores(q, k).int().to(q.dtype), v),
        lambda q, k, v: attend(scores(q, k).half().to(q.dtype), v),
        lambda q, k, v: scores(q, k).softmax(-1).bfloat16().to(q.dtype) @ v,
        lambda q, k, v: F.softmax(scores(q, k), -1, dtype=torch.float16).to(q.dtype) @ v,
    ],
    ids=["whole numbers", "half", "weights in bfloat16", "softmax in half"],
)
def test_casts_that_round_stay(function: Callable[..., Any]) -> None:
    after, report = proved(captured(function, *QKV), STEPS)
    assert SDPA not in kinds(after)
    assert any("rounds to a less precise dtype" in decline.why for decline in report.declined)
