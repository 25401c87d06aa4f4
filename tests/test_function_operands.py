"""Operators that run functions (`cond`): what their bodies do counts where graphs are cut, sharded and inlined."""

import pytest
import torch
from torch import Tensor

import torch_ir
from tests.needed import need_backend
from torch_ir import IR, IRExecutor, optimize, shard, split
from torch_ir.errors import ExecutionError, PipelineError, ShardError
from torch_ir.ir.graph.node import Origin
from torch_ir.ir.regroup.functions import inline_all
from torch_ir.run.storage_inputs import counted_inputs

BRANCHES = """
function counts(t: float32[3, 6], u: float32[4, 6]) {
  as_strided: float32[3, 2] strides [4, 1] = aten.as_strided.default(self=t, size=[3, 2], stride=[4, 1], storage_offset=1)
  as_strided_1: float32[3, 2] strides [4, 1] = aten.as_strided.default(self=u, size=[3, 2], stride=[4, 1], storage_offset=1)
  add: float32[3, 2] = aten.add.Tensor(self=as_strided, other=as_strided_1, alpha=1)
  return add
}

function draws(t: float32[3, 6], u: float32[4, 6]) {
  part: float32[3, 2] strides [6, 1] = aten.slice.Tensor(self=t, dim=1, start=0, end=2, step=1)
  rand_like: float32[3, 2] = aten.DRAWS.default(self=part, dtype=None, layout=None, device=None, pin_memory=False, memory_format=None)
  return rand_like
}

graph Branches(p: bool[], x: float32[4, 6]) {
  param w: float32[6, 6] = "a.weight"
  param v: float32[6, 6] = "b.weight"
  uses @counts
  uses @draws
  a: float32[4, 6] = aten.linear.default(input=x, weight=w, bias=None)
  b: float32[4, 6] = aten.linear.default(input=x, weight=v, bias=None)
  part: float32[3, 6] = aten.slice.Tensor(self=a, dim=0, start=1, end=4, step=1)
  cond: float32[3, 2] = higher_order.cond(pred=p, operands.0=part, operands.1=b, true_fn=@TRUE, false_fn=@draws)
  return cond
}
"""  # noqa: E501  (lines of a graph)


def branches(taken: str = "counts", drawn: str = "zeros_like") -> IR:
    """Two projections, and a branch that counts in the storages of both: one of its operands is a view."""
    ir = IR.parse(BRANCHES.replace("TRUE", taken).replace("DRAWS", drawn))
    for name in ("a", "b"):
        ir.node(name).origin = Origin(module=name)
    return ir


WEIGHTS = {"a.weight": torch.arange(36.0).reshape(6, 6), "b.weight": torch.arange(36.0).reshape(6, 6).cos()}


def wanted(x: Tensor) -> Tensor:
    """What eager returns for the branch."""
    a, b = (torch.nn.functional.linear(x, weight) for weight in WEIGHTS.values())
    return a[1:].as_strided((3, 2), (4, 1), 1) + b.as_strided((3, 2), (4, 1), 1)


def test_a_pipeline_is_not_cut_between_a_view_and_a_branch_that_counts_in_its_storage() -> None:
    """Another process would get the elements of the view alone."""
    with pytest.raises(PipelineError, match=r"'higher_order.cond'\) counts elements in the storage of 'part'"):
        split(branches(), at=["cond"])
    x = torch.randn(4, 6)
    pipeline = split(branches(), at=["part"])
    torch.testing.assert_close(IRExecutor(pipeline, WEIGHTS)(torch.tensor(True), x), wanted(x))


def test_a_sharded_view_is_not_gathered_for_a_branch_that_counts_in_its_storage() -> None:
    with pytest.raises(ShardError, match=r"'higher_order.cond'\) counts elements in the storage of 'part'"):
        shard(branches(), {"a": "colwise"}, {"tp": 2})


@pytest.mark.parametrize("level", ["clean", "basic", "full"])
def test_projections_in_whose_storage_a_branch_counts_are_not_merged(level: str) -> None:
    """Each would be a part of the merged result."""
    x = torch.randn(4, 6)
    better, _ = optimize(branches(), level)
    torch.testing.assert_close(IRExecutor(better, WEIGHTS)(torch.tensor(True), x), wanted(x))


@pytest.mark.parametrize("backend", ["onnxruntime", "openvino"])
def test_runtimes_refuse_branches_that_count_in_the_storage_of_a_view(backend: str) -> None:
    """They count from the first element of the view."""
    need_backend(backend)
    with pytest.raises(ExecutionError, match=r"aten.as_strided.default .* counts from the first element of the view"):
        torch_ir.compile(branches(), WEIGHTS, backend=backend, verify=False)


def test_inputs_in_whose_storage_a_branch_counts_are_known() -> None:
    """Where a graph is sent elsewhere with its inputs, those must be whole storages."""
    text = BRANCHES.replace("operands.1=b", "operands.1=x").replace("DRAWS", "zeros_like")
    assert counted_inputs(IR.parse(text.replace("TRUE", "counts"))) == [0, 1], "all operands, and not the weights"
    assert counted_inputs(IR.parse(text.replace("TRUE", "draws"))) == []


def test_random_numbers_in_a_branch_are_not_sharded() -> None:
    """Each rank would draw others."""
    with pytest.raises(ShardError, match=r"'aten.rand_like.default'\) draws random numbers"):
        shard(branches("draws", "rand_like"), {"b": "colwise"}, {"tp": 2})
    shard(branches("draws"), {"b": "colwise"}, {"tp": 2})


SHARED = """
function f(t: float32[2, 4]) {
  neg: float32[2, 4] = aten.neg.default(self=t)
  return neg
}

function g(t: float32[2, 4]) {
  exp: float32[2, 4] = aten.exp.default(self=t)
  return exp
}

graph Shared(x: float32[2, 4]) {
  param w: float32[4, 4] = "a.weight"
  uses @f
  uses @g
  linear: float32[2, 4] = aten.linear.default(input=x, weight=w, bias=None)
  call: float32[2, 4] = call(t=linear, function=@f)
  sum: float32[] = aten.sum.default(self=call, dtype=None)
  gt: bool[] = aten.gt.Scalar(self=sum, other=0)
  cond: float32[2, 4] = higher_order.cond(pred=gt, operands.0=x, true_fn=@f, false_fn=@g)
  return cond
}
"""


def test_a_function_that_is_called_and_also_a_branch_is_sharded_for_the_call_alone() -> None:
    ir = IR.parse(SHARED)
    ir.node("linear").origin = Origin(module="a")
    made = shard(ir, {"a": "colwise"}, {"tp": 2})
    assert made.functions["f"].graph_inputs[0].shape == (2, 4), "branches run whole"
    assert made.functions[made.node("call").attrs["function"]].graph_inputs[0].shape == (2, 2)


NESTED = """
function f(t: float32[4]) {
  neg: float32[4] = aten.neg.default(self=t)
  return neg
}

function block.f(t: float32[4]) {
  exp: float32[4] = aten.exp.default(self=t)
  return exp
}

function block(t: float32[4]) {
  uses @f
  made: float32[4] = mine.run(x=t, bodies=[1, @f])
  return made
}

graph Nested(x: float32[4]) {
  uses @f
  uses @block
  a: float32[4] = mine.run(x=x, bodies=[1, @f])
  b: float32[4] = call(t=a, function=@block)
  return b
}
"""


def test_functions_in_lists_are_renamed_where_a_body_is_inlined() -> None:
    """`flex_attention` has the function of its mask in a list."""
    ir = IR.parse(NESTED)
    inline_all(ir)
    (name,) = [value for value in ir.nodes[1].attrs["bodies"] if isinstance(value, str)]
    assert [node.op_type for node in ir.functions[name].nodes] == ["aten.exp.default"]


def test_eager_runs_a_branch_after_its_capture() -> None:
    """Under a dispatch mode, torch.compile would mark the operator as one to skip for the rest of the process."""

    class Branch(torch.nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.cond(x.sum() > 0, lambda t: t * 2, lambda t: t + 1, (x,))  # type: ignore[no-any-return]

    torch._dynamo.reset()
    model, x = Branch().eval(), torch.ones(3, 6)
    torch_ir.extract_ir(model, (x,), strict=False)
    assert torch.equal(model(x), x * 2)
    torch._dynamo.reset()
