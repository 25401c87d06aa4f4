"""The optimiser's check: rounding and errors are distinguished on random and extreme inputs."""

import pytest
import torch

from tests.near_values import WRONG, Case, graph_of, verdict
from tests.patterns import stored
from tests.rewriting import small
from torch_ir.ir import IR, Param
from torch_ir.passes.probe_inputs import probes
from torch_ir.passes.random_check import prove

X = "x: float32[4, 6]"


def graph(inputs: str = X, weights: str = "", **calls: str) -> IR:
    return small(inputs, weights=weights, **calls)


MISTAKES: dict[str, tuple[IR, IR, str]] = {
    "NaN becomes 0": (
        graph(relu="aten.relu.default(x)"),
        graph(gt="aten.gt.Scalar(x, 0)", relu="aten.where.ScalarOther(gt, x, 0.0)"),
        "on NaN",
    ),
    "x - x": (
        graph(sub="aten.sub.Tensor(x, x)"), graph(zeros="aten.zeros_like.default(x)"), "where the original is NaN"
    ),
    "x * 0": (
        graph(mul="aten.mul.Tensor(x, 0.0)"), graph(zeros="aten.zeros_like.default(x)"), "where the original is NaN"
    ),
    "complex x - x": (
        graph("x: complex64[4, 6]", sub="aten.sub.Tensor(x, x)"),
        graph("x: complex64[4, 6]", zeros="aten.zeros_like.default(x)"),
        "where the original is NaN",
    ),
    "complex 0 / 0": (
        graph("x: complex64[4, 6]", div="aten.div.Tensor(x, x)"),
        graph("x: complex64[4, 6]", ones="aten.ones_like.default(x)"),
        "on all zeros",
    ),
    "0 / 0": (
        graph(div="aten.div.Tensor(x, x)"), graph(ones="aten.ones_like.default(x)"), "on all zeros"
    ),
    "exponential of large values": (
        graph(softmax="aten.softmax.int(x, -1)"),
        graph(exp="aten.exp.default(x)", sum="aten.sum.dim_IntList(exp, [-1], True)", div="aten.div.Tensor(exp, sum)"),
        "on large values",
    ),
    "another epsilon": (
        graph(norm="aten.layer_norm.default(x, [6], None, None, 1e-5)"),
        graph(norm="aten.layer_norm.default(x, [6], None, None, 1e-3)"),
        "rounding explains",
    ),
    "rounded in between": (
        graph(exp="aten.exp.default(x)"),
        graph(exp="aten.exp.default(x)", half="aten.to.dtype(exp, Dtype('bfloat16'))",
              back="aten.to.dtype(half, Dtype('float32'))"),
        "rounding explains",
    ),
    "subnormal weights": (
        graph("x: float16[4, 6]", "w: float16[3, 6]", y="aten.linear.default(x, w)", z="aten.mul.Tensor(y, 1e-6)"),
        graph("x: float16[4, 6]", "w: float16[3, 6]", s="aten.mul.Tensor(w, 1e-6)", y="aten.linear.default(x, s)"),
        "off by",
    ),
    "whole rows masked": (
        graph(f"{X}, m: bool[4, 6]", fill="aten.masked_fill.Scalar(x, m, -1e30)", y="aten.softmax.int(fill, -1)"),
        graph(f"{X}, m: bool[4, 6]", fill="aten.masked_fill.Scalar(x, m, float('-inf'))",
              soft="aten.softmax.int(fill, -1)", y="aten.nan_to_num.default(soft, 0.0)"),
        "off by 0.167",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_seen(name: str) -> None:
    before, after, where = MISTAKES[name]
    proof = prove(before, after)
    assert not proof.is_valid
    assert where in proof.reason


ROUNDED: dict[str, tuple[IR, IR]] = {
    "order of a sum": (
        graph(add="aten.add.Tensor(x, 0.1)", sub="aten.sub.Tensor(add, 0.3)"), graph(add="aten.add.Tensor(x, -0.2)"),
    ),
    "one product": (
        graph("x: bfloat16[4, 6]", mul="aten.mul.Tensor(x, 3.0)", div="aten.div.Tensor(mul, 7.0)"),
        graph("x: bfloat16[4, 6]", mul="aten.mul.Tensor(x, 0.42857142857142855)"),
    ),
    "computed in a wider dtype": (
        graph("x: float16[4, 6]", exp="aten.exp.default(x)", log="aten.log1p.default(exp)"),
        graph("x: float16[4, 6]", wide="aten.to.dtype(x, Dtype('float32'))", exp="aten.exp.default(wide)",
              log="aten.log1p.default(exp)", back="aten.to.dtype(log, Dtype('float16'))"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", ROUNDED)
def test_rounding_is_no_mistake(name: str) -> None:
    assert prove(*ROUNDED[name]).is_valid


def test_rounding_is_judged_with_equal_values_of_a_tied_weight() -> None:
    """A state dict has a tied weight once for each of its keys."""
    linear, weights = "aten.linear.default(x, w)", "w: float32[5, 6]"
    before = graph(weights=weights, y=linear, add="aten.add.Tensor(y, 1e4)", z="aten.sub.Tensor(add, 1e4)")
    after = graph(weights=weights, z=linear)
    for ir in (before, after):
        ir.params[0].param = Param(("first.w", "second.w"))
    weight = torch.linspace(-1, 1, 30).reshape(5, 6)
    proof = prove(before, after, weights={"first.w": weight, "second.w": weight.clone()})
    assert (proof.is_valid, proof.rounding) == (True, True)


def test_extreme_inputs_are_always_tried() -> None:
    """Also besides given inputs, where integers, which may be indices, are unchanged."""
    ir = graph("x: float32[4, 6], m: bool[4, 6], n: int64[4]", y="aten.masked_fill.Scalar(x, m, 0.0)")
    kinds = [probe.kind for probe in probes(ir, None, 2)]
    assert kinds[:2] == ["random", "random"]
    assert kinds[2:] == [
        "all zeros", "all ones", "wholly masked rows", "large values", "small values", "zeros and subnormal numbers",
        "NaN", "infinities",
    ]  # fmt: skip
    given = next(iter(probes(ir, None, 1))).values
    for probe in probes(ir, given, 1):
        assert probe.values[2].equal(given[2])
    proof = prove(ir, ir.clone())
    assert (proof.trials, proof.extremes) == (2, 8)


FAULTS = {
    "fold_arithmetic.too_narrow": (lambda *_: "", ("fold-arithmetic", "linear mul 1e-06"), "float16"),
    "attention._keeps_precision": (lambda *_: True, ("attention", "casts int32 "), "float32"),
    "attention._may_be_added": (lambda *_: True, ("attention", "one minus -1000000000.0 "), "float16"),
}


@pytest.mark.parametrize("place", FAULTS)
def test_the_sweep_finds_a_rule_that_is_wrong(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without one of its conditions, a rule is silently wrong, and the sweep detects it."""
    change, hit, dtype = FAULTS[place]
    case = Case(hit, dtype, "generated", "full")
    ir = graph_of(case, stored())
    assert ir is not None
    assert not verdict(case, ir).startswith(WRONG)
    folder = "weights" if place.startswith("fold") else "fuse"
    monkeypatch.setattr(f"torch_ir.passes.{folder}.{place}", change)
    assert verdict(case, ir).startswith(WRONG)
