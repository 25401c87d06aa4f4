"""Layers with their activations, and gated layers, as one call."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from tests.captured import captured, kinds
from tests.rewriting import optimized, small
from torch_ir.passes import optimize
from torch_ir.passes.pass_registry import Pass, find_pass
from torch_ir.passes.random_check import prove

CONV = ((1, 3, 6, 6), (3, 3, 3, 3), (3,))
LINEAR = ((2, 3), (4, 3), (4,))


@pytest.mark.parametrize(
    ("function", "shapes", "name"),
    [
        (lambda x, w, b: F.conv2d(x, w, b).relu(), CONV, "conv2d_relu"),
        (lambda x, w, b: F.relu6(F.conv2d(x, w, b)), CONV, "conv2d_relu6"),
        (lambda x, w, b: F.silu(F.conv2d(x, w, b, padding=1)), CONV, "conv2d_silu"),
        (lambda x, w, b: F.hardswish(F.conv2d(x, w)), CONV, "conv2d_hardswish"),
        (lambda x, w, b: (F.conv2d(x, w, b, padding=1) + x).relu(), CONV, "conv2d_add_relu"),
        (lambda x, w, b: (x + F.conv2d(x, w, b, padding=1)).relu(), CONV, "conv2d_add_relu"),
        (lambda x, w, b: x + F.conv2d(x, w, b, padding=1), CONV, "conv2d_add"),
        (lambda x, w, b: F.linear(x, w, b).relu(), LINEAR, "linear_relu"),
        (lambda x, w, b: F.gelu(F.linear(x, w, b)), LINEAR, "linear_gelu"),
        (lambda x, w, b: torch.clamp(F.linear(x, w, b), min=0), LINEAR, "linear_relu"),
        (lambda x, w, b: torch.clamp(F.linear(x, w, b), min=1), LINEAR, "linear_clamp"),
    ],
)
def test_a_layer_and_its_activation(function: Callable[..., Any], shapes: Any, name: str) -> None:
    """One call named after both, with the arguments of the layer; the body is the original nodes."""
    after = optimized(captured(function, *shapes), ["fuse-activations"], exact=True)
    assert kinds(after) == [f"fused.{name}"]
    assert after.nodes[0].args[:2] == ("input", "weight")


@pytest.mark.parametrize(
    ("function", "left"),
    [
        (lambda x, w, b: (lambda y: (y.relu(), y))(F.linear(x, w, b)), ["aten.linear.default", "aten.relu.default"]),
        (lambda x, w, b: F.linear(x, w, b) + 1, ["aten.linear.default", "aten.add.Tensor"]),
        (lambda x, w, b: torch.cos(F.linear(x, w, b)), ["aten.linear.default", "aten.cos.default"]),
    ],
    ids=["result of the layer is read", "a sum after a linear layer", "no activation"],
)
def test_what_stays(function: Callable[..., Any], left: list[str]) -> None:
    """A layer with other consumers, and operators that are not activations."""
    assert kinds(optimized(captured(function, *LINEAR), ["fuse-activations"], exact=True)) == left


def test_of_two_convolutions_one_takes_the_sum() -> None:
    """The other one precedes the call."""
    ir = captured(lambda x, w, v: (F.conv2d(x, w) + F.conv2d(x, v)).relu(), CONV[0], CONV[1], CONV[1])
    assert kinds(optimized(ir, ["fuse-activations"], exact=True)) == ["aten.conv2d.default", "fused.conv2d_add_relu"]


def mlp(x: torch.Tensor, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
    return F.linear(F.silu(F.linear(x, a)) * F.linear(x, b), c)


MLP = ((2, 4), (6, 4), (6, 4), (4, 6))


def test_a_gate_is_one_call() -> None:
    """silu(gate) * up"""
    after = optimized(captured(mlp, *MLP), ["fuse-gates"], exact=True)
    assert kinds(after) == ["aten.linear.default"] * 2 + ["fused.silu_mul", "aten.linear.default"]
    assert after.nodes[2].args == ("gate", "up")


def test_a_whole_gated_layer_is_one_call_where_that_is_wanted() -> None:
    """An option of the pass."""
    ir = captured(mlp, *MLP)
    whole = Pass("whole", lambda graph: find_pass("fuse-gates")(graph, whole=True))
    after, _ = optimize(ir, passes=[whole])
    assert [(node.op_type, node.args) for node in after.nodes] == [("fused.silu_mlp", ("input", "gate", "up", "down"))]
    assert prove(ir, after).max_diff == 0.0


@pytest.mark.parametrize(
    "function",
    [
        lambda x, y: (lambda active: (active * y, active))(F.silu(x)),
        lambda x, y: F.silu(x) * y[:1],
        lambda x, y: F.silu(x) * 2,
        lambda x, y: (lambda active: active * active)(F.relu(x)),
    ],
    ids=["activation is read", "a row for all", "a number", "a square"],
)
def test_what_is_no_gate_stays(function: Callable[..., Any]) -> None:
    """The activation has another consumer, or the factor is not a tensor of the same shape."""
    after = optimized(captured(function, (2, 4), (2, 4)), ["fuse-gates"], exact=True)
    assert not [kind for kind in kinds(after) if kind.startswith("fused")]


def test_a_tensor_with_itself() -> None:
    """The gate and the gated tensor may be the same."""
    ir = small("x: float32[4]", relu="aten.relu.default(x)", mul="aten.mul.Tensor(relu, x)")
    after = optimized(ir, ["fuse-gates"], exact=True)
    assert kinds(after) == ["fused.relu_mul"]
