"""Norms that are written out: RMS norms become calls, layer norms the operator."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.captured import captured, kinds
from tests.rewriting import optimized, proved, small, text
from torch_ir.passes.optimize_levels import CLEAN


def rms_norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    wide = x.to(torch.float32)
    wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
    return weight * wide.to(x.dtype)


def root(x: torch.Tensor) -> torch.Tensor:
    return (x * x).mean(-1, keepdim=True) + 1e-6


RMS: dict[str, Callable[..., Any]] = {
    "of Llama": rms_norm,
    "of T5": lambda x, w: w * (x * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype),
    "of Gemma": lambda x, w: (x.float() * torch.rsqrt(root(x.float())) * (1.0 + w.float())).type_as(x),
    "division": lambda x, w: x / torch.sqrt(root(x)) * w,
    "power": lambda x, w: w * (torch.pow(root(x), -0.5) * x),
    "square": lambda x, w: x * torch.rsqrt(1e-6 + torch.square(x).mean((2,), keepdim=True)) * w,
    "reciprocal": lambda x, w: x * torch.reciprocal(torch.sqrt(root(x))) * w,
}


@pytest.mark.parametrize("name", RMS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_every_spelling_of_an_rms_norm(name: str, dtype: torch.dtype) -> None:
    """One call, which is equal to the last bit in every dtype; its eps is an attribute."""
    ir = captured(RMS[name], (2, 3, 8), (8,), dtype=dtype)
    after = optimized(ir, [*CLEAN, "fuse-norms"], exact=True)
    call = after.nodes[-1]
    assert (call.op_type, call["eps"], call["input"]) == ("fused.rms_norm", 1e-6, after.graph_inputs[0])
    assert set(kinds(after)[:-1]) <= {"aten.to.dtype", "aten.add.Tensor"}  # Gemma adds 1 to its weight


def test_an_rms_norm_as_text() -> None:
    """The call reads the tensor and the weight; inside are the nodes that were there."""
    ir = small(
        "x: float32[2, 8]",
        weights="w: float32[8]",
        pow="aten.pow.Tensor_Scalar(x, exponent=2)",
        mean="aten.mean.dim(pow, dim=[-1], keepdim=True)",
        add="aten.add.Tensor(mean, other=1e-05)",
        rsqrt="aten.rsqrt.default(add)",
        mul="aten.mul.Tensor(x, rsqrt)",
        scaled="aten.mul.Tensor(mul, w)",
    )
    after = optimized(ir, ["fuse-norms"], exact=True)
    call = "  scaled: float32[2, 8] = fused.rms_norm(input=x, weight=w, eps=1e-05, function=@rms_norm)"
    assert call in text(after).splitlines()
    assert kinds(after.functions["rms_norm"]) == kinds(ir)


def test_without_a_weight() -> None:
    """The weight is not needed, and a product with something else is not one."""
    plain = captured(lambda x: x * torch.rsqrt(root(x)), (2, 8))
    assert kinds(optimized(plain, [*CLEAN, "fuse-norms"])) == ["fused.rms_norm"]
    gated = captured(lambda x, y: x * torch.rsqrt(root(x)) * y, (2, 8), (2, 8))
    assert kinds(optimized(gated, [*CLEAN, "fuse-norms"])) == ["fused.rms_norm", "aten.mul.Tensor"]


def test_a_cast_that_others_read_stays_outside() -> None:
    """The float32 tensor has other consumers; the norm reads it."""
    ir = captured(
        lambda x: (lambda wide: (wide * torch.rsqrt(root(wide)), wide + 1))(x.float()), (2, 8), dtype=torch.float16
    )
    after = optimized(ir, [*CLEAN, "fuse-norms"], exact=True)
    assert sorted(kinds(after)) == ["aten.add.Tensor", "aten.to.dtype", "fused.rms_norm"]


def test_a_cast_for_the_next_reader_stays_outside() -> None:
    """Only a cast back to the original dtype is part of the norm."""
    ir = captured(lambda x, w: rms_norm(x, w).float(), (2, 8), (8,), dtype=torch.bfloat16)
    assert kinds(optimized(ir, [*CLEAN, "fuse-norms"], exact=True)) == ["fused.rms_norm", "aten.to.dtype"]


@pytest.mark.parametrize(
    "function",
    [
        lambda x: (lambda x: x * torch.rsqrt(torch.pow(x, x).mean(-1, keepdim=True) + 1e-6))(x.abs()),
        lambda x: (lambda mean: (x * torch.rsqrt(mean), mean))(root(x)),
        lambda x: x * torch.rsqrt(root(x).mean()),
        lambda x: x * torch.rsqrt((x * x).mean(0, keepdim=True) + 1e-6),
        lambda x: x * torch.rsqrt((x * x).sum(-1, keepdim=True) + 1e-6),
        lambda x: x * torch.rsqrt((x.neg() * x).mean(-1, keepdim=True).abs() + 1e-6),
        lambda x: x.exp() * torch.rsqrt(root(x)),
    ],
    ids=[
        "a power of itself",
        "inner result is read",
        "mean of all",
        "first dimension",
        "sum",
        "no square",
        "another tensor",
    ],
)
def test_what_is_no_rms_norm_stays(function: Callable[..., Any]) -> None:
    """Similar nodes that compute something else, or whose intermediate results have other consumers."""
    ir = captured(function, (4, 8))
    assert "fused.rms_norm" not in kinds(optimized(ir, [*CLEAN, "fuse-norms"]))


def centred(x: torch.Tensor) -> torch.Tensor:
    return x - x.mean(-1, keepdim=True)


def variance(x: torch.Tensor) -> torch.Tensor:
    return centred(x).pow(2).mean(-1, keepdim=True)


LAYER: dict[str, Callable[..., Any]] = {
    "square of the difference": lambda x, w, b: centred(x) / torch.sqrt(variance(x) + 1e-5) * w + b,
    "rsqrt": lambda x, w, b: b + w * (centred(x) * torch.rsqrt(variance(x) + 1e-5)),
    "var": lambda x, w, b: (
        (x - x.mean(-1, keepdim=True)) / torch.sqrt(x.var(-1, keepdim=True, unbiased=False) + 1e-5) * w + b
    ),
}


@pytest.mark.parametrize("name", LAYER)
def test_every_spelling_of_a_layer_norm(name: str) -> None:
    """One operator, with its weight and its bias."""
    ir = captured(LAYER[name], (2, 3, 8), (8,), (8,))
    after = optimized(ir, [*CLEAN, "layer-norms", "dead-code"])
    assert kinds(after) == ["aten.layer_norm.default"]
    assert [after.nodes[0][name] for name in ("normalized_shape", "eps")] == [[8], 1e-5]
    assert set(after.nodes[0].origins) >= {node.name for node in ir.nodes if node.op_type.startswith("aten.mean")}


@pytest.mark.parametrize(
    ("function", "dtype"),
    [
        (lambda x: centred(x) / torch.sqrt(variance(x) + 1e-5), torch.bfloat16),
        (lambda x: centred(x) / torch.sqrt(x.var(-1, keepdim=True) + 1e-5), torch.float32),
        (lambda x: centred(x) / (torch.sqrt(variance(x)) + 1e-5), torch.float32),
        (
            lambda x: (x - x.mean(0, keepdim=True)) / torch.sqrt(x.var(0, keepdim=True, unbiased=False) + 1e-5),
            torch.float32,
        ),
        (lambda x: centred(x) / torch.sqrt(variance(x.exp()) + 1e-5), torch.float32),
        (
            lambda x: (
                torch.sub(x, x.mean(-1, keepdim=True), alpha=2)
                / torch.sqrt(x.var(-1, keepdim=True, unbiased=False) + 1e-5)
            ),
            torch.float32,
        ),
    ],
    ids=["bfloat16", "sample variance", "eps outside", "first dimension", "variance of another", "twice the mean"],
)
def test_what_is_no_layer_norm_stays(function: Callable[..., Any], dtype: torch.dtype) -> None:
    """Another variance, another place of eps, other dimensions, or a dtype in which the operator rounds otherwise."""
    ir = captured(function, (4, 8), dtype=dtype)
    assert "aten.layer_norm.default" not in kinds(optimized(ir, [*CLEAN, "layer-norms"]))


def test_the_producer_of_the_input_is_not_an_origin() -> None:
    """The norm replaces the variance, but not the node that computes its input."""
    ir = captured(lambda x, w, b: LAYER["var"](x.relu(), w, b), (4, 8), (8,), (8,))
    after = optimized(ir, [*CLEAN, "layer-norms", "dead-code"])
    assert kinds(after) == ["aten.relu.default", "aten.layer_norm.default"]
    assert {"relu"}.isdisjoint(after.nodes[1].origins)


def test_the_dtype_is_told() -> None:
    """The reason is reported."""
    ir = captured(lambda x: centred(x) / torch.sqrt(variance(x) + 1e-5), (4, 8), dtype=torch.bfloat16)
    _, report = proved(ir, [*CLEAN, "layer-norms"])
    assert "in bfloat16, the operator rounds differently from the separate steps" in [d.why for d in report.declined]
