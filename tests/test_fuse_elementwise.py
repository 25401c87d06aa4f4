"""Consecutive element-wise operators become one call; no group depends on itself through other nodes."""

import random

import pytest
import torch

from tests.captured import captured, kinds
from tests.rewriting import optimized, small, text
from torch_ir.ir import IR
from torch_ir.passes import optimize
from torch_ir.passes.random_check import prove


def test_a_chain_is_one_call() -> None:
    """The chain's inputs are the arguments of the call; a tensor that is read twice is one argument."""
    ir = captured(lambda x, y: torch.tanh((x * 2 + y) * x), (3, 4), (3, 4))
    after = optimized(ir, ["fuse-elementwise"], exact=True)
    assert [(node.op_type, node.args) for node in after.nodes] == [("fused.elementwise", ("input", "input_1"))]
    assert kinds(after.functions["elementwise"]) == kinds(ir)


def test_several_results() -> None:
    """An inner tensor that others read is a further result."""
    ir = captured(lambda x: (lambda y: (y.exp().neg(), y @ y))(x + 1), (4, 4))
    after = optimized(ir, ["fuse-elementwise"], exact=True)
    assert kinds(after) == ["fused.elementwise", "aten.matmul.default"]
    assert len(after.nodes[0].outputs) == 2


def test_another_shape_begins_another_group() -> None:
    """One loop over one shape: values per row are not recomputed for every element."""
    ir = captured(lambda x, row: (x + (row * 2).exp()).tanh(), (3, 4), (4,))
    after = optimized(ir, ["fuse-elementwise"], exact=True)
    assert [node.outputs[0].shape for node in after.nodes] == [(4,), (3, 4)]
    assert kinds(after) == ["fused.elementwise"] * 2


@pytest.mark.parametrize(
    "calls",
    [
        {"neg": "aten.neg.default(x)"},
        {"neg": "aten.neg.default(x)", "t": "aten.t.default(neg)", "exp": "aten.exp.default(t)"},
        {"p": "aten.sigmoid.default(x)", "a": "aten.bernoulli.default(p)", "b": "aten.bernoulli.default(a)"},
        {"same": "aten.to.dtype(x, dtype=Dtype('float32'))", "neg": "aten.neg.default(same)"},
    ],
    ids=["one alone", "a view in between", "random numbers", "a cast that does nothing"],
)
def test_what_stays(calls: dict[str, str]) -> None:
    """Single operators, and operators that are not element-wise, are random, or only pass their input on."""
    ir = small("x: float32[4, 4]", **calls)
    assert text(optimized(ir, ["fuse-elementwise"])) == text(ir)


def drawn(seed: int) -> IR:
    """A random graph of element-wise operators and products of matrices."""
    draw = random.Random(seed)
    known = ["x", "y"]
    calls: dict[str, str] = {}
    for index in range(draw.randint(3, 25)):
        kind = draw.choice(
            ["aten.neg.default({0})", "aten.add.Tensor({0}, {1})", "aten.tanh.default({0})"] * 2
            + ["aten.mm.default({0}, {1})"]
        )
        one, other = draw.choice(known[-6:]), draw.choice(known[-6:])
        calls[f"n{index}"] = kind.format(one, other)
        known.append(f"n{index}")
    results = draw.sample(list(calls), min(len(calls), 3))
    return small("x: float32[3, 3], y: float32[3, 3]", results, **calls)


@pytest.mark.parametrize("seed", range(25))
def test_random_graphs(seed: int) -> None:
    """Every graph is bit-identical in results, deterministic, and restored by inlining."""
    ir = drawn(seed)
    after, _ = optimize(ir, passes=["fuse-elementwise"])
    assert prove(ir, after).max_diff == 0.0
    assert text(optimize(ir, passes=["fuse-elementwise"])[0]) == text(after)
    flat = after.at_level("aten")
    assert sorted(text(flat).splitlines()) == sorted(text(ir).splitlines())
