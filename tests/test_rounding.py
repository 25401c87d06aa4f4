"""The optimiser's check: rounding and errors are distinguished on random and extreme inputs."""

import math

import pytest
import torch

from tests.near_values import WRONG, Case, graph_of, verdict
from tests.patterns import stored
from tests.rewriting import small
from torch_ir.ir import IR, OpNode, Param
from torch_ir.ops.fast_paths import plain_kernels
from torch_ir.passes import optimize
from torch_ir.passes.probe_inputs import probes
from torch_ir.passes.random_check import prove
from torch_ir.rewrite import CUTS, REORDERS, SPREADS
from torch_ir.rewrite.change_log import Change
from torch_ir.run.executor import IRExecutor
from torch_ir.run.weight_files import random_weights

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
    "infinity minus infinity": (
        graph(sub="aten.sub.Tensor(x, x)", exp="aten.exp.default(sub)"),
        graph(zeros="aten.mul.Tensor(x, 0.0)", exp="aten.exp.default(zeros)", nan="aten.nan_to_num.default(exp, 1.0)"),
        "where the original is NaN",
    ),
    "infinity becomes NaN": (
        graph(mul="aten.mul.Tensor(x, 2.0)"),
        graph(sub="aten.sub.Tensor(x, x)", add="aten.add.Tensor(x, sub)", mul="aten.mul.Tensor(add, 2.0)"),
        "another of NaN, infinity",
    ),
    "infinity changes its sign": (
        graph(mul="aten.mul.Tensor(x, 2.0)"),
        graph(gt="aten.gt.Scalar(x, 1e38)", mul="aten.mul.Tensor(x, 2.0)", neg="aten.neg.default(mul)",
              where="aten.where.self(gt, neg, mul)"),
        "another of NaN, infinity",
    ),
    "NaN in another place": (
        graph(relu="aten.relu.default(x)"),
        graph(relu="aten.relu.default(x)", sum="aten.sum.dim_IntList(relu, [-1], True)",
              zero="aten.mul.Tensor(sum, 0.0)", add="aten.add.Tensor(relu, zero)"),
        "NaN or infinity where the original is finite on NaN",
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
        "NaN", "infinities", "one NaN", "one infinity", "one negative infinity",
    ]  # fmt: skip
    given = next(iter(probes(ir, None, 1))).values
    for probe in probes(ir, given, 1):
        assert probe.values[2].equal(given[2])
    proof = prove(ir, ir.clone())
    assert (proof.trials, proof.extremes) == (2, 11)


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


# A graph, a pass, and the declarations of its rule; without the first, verification fails.
NON_FINITE: dict[str, tuple[IR, str, list[str]]] = {
    "infinities between two layers": (
        graph("x: float32[2, 6]", "w: float32[4, 6], v: float32[3, 4]", y="aten.linear.default(x, w)",
              z="aten.linear.default(y, v)"),
        "linear", [REORDERS],
    ),
    "a row of -inf": (
        graph("q: float32[1, 2, 3, 4], k: float32[1, 2, 4, 1], v: float32[1, 2, 1, 4]",
              scores="aten.matmul.default(q, k)", soft="aten.softmax.int(scores, -1)",
              made="aten.matmul.default(soft, v)"),
        "attention", [REORDERS],
    ),
    "a masked NaN": (
        graph("q: float32[1, 2, 3, 4], k: float32[1, 2, 4, 3], v: float32[1, 2, 3, 4], m: bool[1, 2, 3, 3]",
              scores="aten.matmul.default(q, k)", fill="aten.masked_fill.Scalar(scores, m, -3.4028234663852886e+38)",
              soft="aten.softmax.int(fill, -1)", made="aten.matmul.default(soft, v)"),
        "attention", [SPREADS, REORDERS],
    ),
    "relu in oneDNN": (
        graph("x: float32[2, 3, 9, 8]", "w: float32[3, 4, 3, 3]",
              conv="aten.conv_transpose2d.input(x, w, None, [2, 1])", relu="aten.relu.default(conv)"),
        "pack-convolutions", [CUTS],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", NON_FINITE)
def test_a_rule_declares_what_it_changes_for_nan_and_infinities(name: str) -> None:
    """Verification accepts just that: without the declaration it fails."""
    ir, step, declared = NON_FINITE[name]
    after, report = optimize(ir, passes=[step])
    assert {what for change in report.changes for what in change.non_finite} == set(declared)
    assert prove(ir, after, changes=report.changes).is_valid
    assert not prove(ir, after, changes=[Change("", "", (), tuple(declared[1:]))]).is_valid


def test_a_declaration_excuses_nothing_else() -> None:
    """Two layers in a row may return an infinity instead of NaN, but not NaN instead of an infinity."""
    ir, step, declared = NON_FINITE["infinities between two layers"]
    after, report = optimize(ir, passes=[step])
    assert declared == [REORDERS]
    last = after.nodes[-1].output
    zeros, made = last.copy("zeros"), last.copy("made")
    nodes = [
        OpNode("zeros", "aten.mul.Tensor", [last], [zeros], {"other": 0.0}, args=["self"]),
        OpNode("made", "aten.add.Tensor", [last, zeros], [made], {"alpha": 1}, args=["self", "other"]),
    ]
    merged = after.clone()
    after.insert_after(after.nodes[-1], nodes)
    after.graph_outputs = [made]
    assert prove(ir, merged, changes=report.changes).is_valid
    assert not prove(merged, after, changes=report.changes).is_valid


GELU = {
    "erf": {"div": "aten.div.Tensor(x, 1.4142135623730951)", "curve": "aten.erf.default(div)"},
    "tanh": {"cube": "aten.pow.Tensor_Scalar(x, 3)", "small": "aten.mul.Tensor(cube, 0.044715)",
             "sum": "aten.add.Tensor(x, small)", "root": "aten.mul.Tensor(sum, 0.7978845608028654)",
             "curve": "aten.tanh.default(root)"},
}  # fmt: skip


@pytest.mark.parametrize("curve", GELU)
def test_gelu_of_infinities_is_compared_as_it_is_defined(curve: str) -> None:
    """oneDNN returns NaN for infinity; without it, GELU and its written form are the same for every number."""
    rest = {"half": "aten.mul.Tensor(x, 0.5)", "one": "aten.add.Tensor(curve, 1.0)", "y": "aten.mul.Tensor(half, one)"}
    ir = graph(**GELU[curve], **rest)
    after, report = optimize(ir)
    assert [node.op_type for node in after.nodes] == ["aten.gelu.default"]
    assert not any(change.non_finite for change in report.changes)
    assert prove(ir, after).is_valid
    x = torch.tensor([math.inf, -math.inf, math.nan, 0.0, 1e30, -1e30, 3.0])
    with plain_kernels():
        results = [
            IRExecutor(each.specialize()).run([x.repeat(24)[:24].reshape(4, 6)]).outputs[0] for each in (ir, after)
        ]
    torch.testing.assert_close(*results, equal_nan=True)
    assert torch.backends.mkldnn.enabled == torch.backends.mkldnn.is_available()


def test_gelu_of_an_infinity_that_arises_in_the_graph() -> None:
    """All inputs are zeros, of which the reciprocal is infinite."""
    calls = {name: text.replace("(x", "(inverse") for name, text in GELU["erf"].items()}
    half, one, y = "aten.mul.Tensor(inverse, 0.5)", "aten.add.Tensor(curve, 1.0)", "aten.mul.Tensor(half, one)"
    ir = graph(inverse="aten.reciprocal.default(x)", **calls, half=half, one=one, y=y)
    _, report = optimize(ir, verify=True)
    assert "activation" in {change.rule for change in report.changes}
    assert report.proof is not None
    assert report.proof.is_valid, report.proof
    assert report.proof.max_diff < 1e-3


def test_a_merge_of_parallel_layers_keeps_nan_in_its_own_results() -> None:
    """Every result of the merged layer is a product with one row of one weight."""
    layers = {name: f"aten.linear.default(x, {name}_w)" for name in ("q", "k", "v")}
    made = {f"{name}_exp": f"aten.exp.default({name})" for name in layers}
    weights = ", ".join(f"{name}_w: float32[5, 16]" for name in layers)
    ir = small("x: float32[3, 16]", list(made), weights=weights, **layers, **made)
    after, report = optimize(ir, passes=["merge-projections"])
    assert [change.rule for change in report.changes] == ["merge-projections"] * 3
    assert not any(change.non_finite for change in report.changes)
    values = random_weights(ir)
    values["k_w"][2, 3] = math.nan
    values["v_w"][1, 4] = math.inf
    assert prove(ir, after, weights=values).is_valid
