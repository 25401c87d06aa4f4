"""What becomes known or fixed through another rewrite is used in the same run, and nothing is computed more often."""

import math

import pytest
import torch

from torch_ir import IR, IRExecutor, cost, optimize, to_opset
from torch_ir.ir.regroup.functions import outline

# `positive` is not folded; once it is gone, what follows it is.
KNOWN_LATE = """
graph(x: float32[4]) {
  constant c: float32[4] = "c" values [1.0, 2.0, 3.0, 4.0]
  positive: float32[4] = aten.positive.default(self=c)
  abs: float32[4] = aten.abs.default(self=positive)
  mul: float32[4] = aten.mul.Tensor(self=x, other=abs)
  return mul
}
"""
LAYER_OF_WEIGHTS = """
graph(x: float32[4]) {
  param p: float32[4] = "p"
  param w: float32[4, 4] = "w"
  param b: float32[4] = "b"
  param c: float32[4] = "c"
  linear: float32[4] = aten.linear.default(input=p, weight=w, bias=b)
  sub: float32[4] = aten.sub.Tensor(self=linear, other=c, alpha=1)
  abs: float32[4] = aten.abs.default(self=x)
  return sub, abs
}
"""
CALLED_ON_WEIGHTS = """
graph(x: float32[4]) {
  param p: float32[4] = "p"
  abs: float32[4] = aten.abs.default(self=x)
  relu: float32[4] = aten.relu.default(self=p)
  neg: float32[4] = aten.neg.default(self=relu)
  mul: float32[4] = aten.mul.Tensor(self=abs, other=neg)
  return mul
}
"""
ASSERTED = """
graph(x: int64[4]) {
  aten._assert_tensor_metadata.default(a=x, size=None, stride=None, dtype=int64, device=cpu, layout=strided) as asserted
  abs: int64[4] = aten.abs.default(self=x)
  return abs
}
"""


@pytest.mark.parametrize("level", ["clean", "basic", "full"])
def test_a_value_that_a_rewrite_makes_known_is_folded(level: str) -> None:
    better, _ = optimize(IR.parse(KNOWN_LATE), level)
    assert [node.op_type for node in better.nodes] == ["aten.mul.Tensor"]
    assert not optimize(better, level)[1].changes


def test_a_layer_of_weights_stays_computed_once() -> None:
    """With the subtraction in its bias, its result would go to the caller, and be computed in every run."""
    ir = IR.parse(LAYER_OF_WEIGHTS)
    better, report = optimize(ir, "full")
    assert cost(better).flops == cost(ir).flops
    assert not report.changes


def test_calls_of_calls_on_weights_run_once() -> None:
    ir = IR.parse(CALLED_ON_WEIGHTS)
    outline(ir, [ir.node("relu")], "inner")
    outline(ir, [node for node in ir.nodes if node.is_call or node.name == "neg"], "outer")
    assert [node.op_type for node in ir.nodes] == ["aten.abs.default", "call", "aten.mul.Tensor"]
    assert any(node.is_call for node in ir.functions["outer"].nodes)
    better, _ = optimize(ir, passes=["hoist-prologue"])
    assert [node.inputs[0].name for node in better.nodes][:2] == ["p", "x"]


def test_the_sum_of_zero_and_a_complex_number_keeps_its_nans() -> None:
    """0 + x multiplies x by 1 + 0i, so a NaN in one part is in both."""
    text = """
    graph(x: complex64[2]) {
      full: int8[] = aten.full.default(size=[], fill_value=0, dtype=int8, layout=None, device=None, pin_memory=None)
      add: complex64[2] = aten.add.Tensor(self=full, other=x, alpha=1)
      return add
    }
    """
    ir = IR.parse(text)
    better, _ = optimize(ir, "full")
    x = torch.tensor([complex(math.nan, 1), complex(2, 3)])
    one, other = (torch.view_as_real(IRExecutor(graph, {})(x)) for graph in (ir, better))
    assert torch.equal(one.isnan(), other.isnan())


def test_an_assertion_that_cannot_fail_is_not_left_over() -> None:
    made, report = to_opset(IR.parse(ASSERTED), "core-aten")
    assert report.is_complete
    assert [node.op_type for node in made.nodes] == ["aten.abs.default"]
