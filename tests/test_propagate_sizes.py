"""Sizes and numbers: known values become numbers, guards that always hold are removed, others are kept."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.proof import captured, module
from tests.rewriting import lines, optimized, proved, small, text
from torch_ir import IR, OpNode
from torch_ir.errors import GuardError
from torch_ir.ir import Dtype, Expr, Param
from torch_ir.ops.tensor_data import from_tensor
from torch_ir.passes import optimize
from torch_ir.run.executor import IRExecutor

SIZES = ["propagate-sizes"]


def _guarded(ir: IR, op_type: str, argument: str | None = None, tensor: str = "", **attrs: Any) -> IR:
    """The graph with a guard at its end."""
    made = [found for found in ir.tensors() if found.name == tensor]
    ir.nodes.append(OpNode("guard", op_type, made, (), attrs, args=[argument] if argument else []))
    return ir.check()


def _is_dropped(ir: IR) -> bool:
    after, _ = optimize(ir, passes=SIZES)
    return all(node.name != "guard" for node in after.nodes)


def _graph() -> IR:
    return small("x: float32[3]", three="aten.full.default([], 3.0)", neg="aten.neg.default(x)")


@pytest.mark.parametrize(
    ("condition", "dropped"), [(True, True), (Expr("2 * 4 == 8"), True), (False, False), (0, False)]
)
def test_a_condition_on_numbers(condition: Any, dropped: bool) -> None:
    """True conditions are removed, false ones are an error of the run."""
    ir = _guarded(_graph(), "aten._assert_scalar.default", self=condition, assert_msg="no")
    assert _is_dropped(ir) is dropped


@pytest.mark.parametrize(("assumed", "dropped"), [(3.0, True), (4.0, False)])
def test_a_decision_on_a_known_number(assumed: float, dropped: bool) -> None:
    """A recorded decision is removed if its value is known; the other outcome still raises."""
    ir = _guarded(_graph(), "torch_ir.decision.default", "value", "three", assumed=assumed, place="model.py:1")
    assert _is_dropped(ir) is dropped
    if not dropped:
        after, _ = optimize(ir, passes=SIZES)
        with pytest.raises(GuardError):
            IRExecutor(after, {}).execute((torch.zeros(3),))


def test_a_decision_on_data_stays() -> None:
    """The value of an input is unknown."""
    ir = small("x: float32[]", neg="aten.neg.default(x)")
    assert not _is_dropped(_guarded(ir, "torch_ir.decision.default", "value", "x", assumed=1.0, place=""))


@pytest.mark.parametrize(("tensor", "dropped"), [("three", True), ("neg", False)])
def test_a_fixed_shape(tensor: str, dropped: bool) -> None:
    """The declared shape is what the guard checks, so only a known value proves it."""
    shape = [] if tensor == "three" else [3]
    ir = _guarded(_graph(), "torch_ir.fixed_shape.default", "value", tensor, shape=shape, place="")
    assert _is_dropped(ir) is dropped


@pytest.mark.parametrize(("dtype", "dropped"), [("float32", True), (None, True), ("float16", False)])
def test_what_a_cast_expects(dtype: str | None, dropped: bool) -> None:
    """A dtype assertion is removed if the graph declares that dtype."""
    ir = _graph()
    named = None if dtype is None else Dtype(dtype)
    attrs = {"size": None, "stride": None, "dtype": named, "device": None, "layout": None}
    assert _is_dropped(_guarded(ir, "aten._assert_tensor_metadata.default", "a", "x", **attrs)) is dropped


@pytest.mark.parametrize(("size", "dropped"), [(4, True), (1, False), (9, False), (Expr("n"), False)])
def test_a_range_of_a_size(size: Any, dropped: bool) -> None:
    """A number within its range needs no check."""

    def forward(self: nn.Module, x: Tensor) -> Tensor:
        return -x

    ir = captured(module(forward), torch.randn(5), dynamic_shapes={"x": {0: torch.export.Dim("n", min=2, max=8)}})
    guarded = _guarded(ir, "aten.sym_constrain_range_for_size.default", size=size, min=2, max=8)
    assert _is_dropped(guarded) is dropped


def test_a_0d_constant_becomes_a_number() -> None:
    """Wherever torch has the operator with a number."""
    ir = small(
        "x: float32[3]",
        ["mul", "ge", "where", "fill"],
        two="aten.scalar_tensor.default(2)",
        mul="aten.mul.Tensor(x, two)",
        ge="aten.ge.Tensor(x, two)",
        where="aten.where.self(ge, x, two)",
        fill="aten.masked_fill.Tensor(x, ge, two)",
    )
    after = optimized(ir, [*SIZES, "dead-code"], exact=True)
    assert text(after) == lines("""
        graph(x: float32[3]) {
          mul_1: float32[3] = aten.mul.Tensor(self=x, other=2.0)
          ge_1: bool[3] = aten.ge.Scalar(self=x, other=2.0)
          where_1: float32[3] = aten.where.ScalarOther(condition=ge_1, self=x, other=2.0)
          masked_fill: float32[3] = aten.masked_fill.Scalar(self=x, mask=ge_1, value=2.0)
          return mul_1, ge_1, where_1, masked_fill
        }
    """)


def _times_constant(x: str, constant: Tensor) -> IR:
    dtype = str(constant.dtype).removeprefix("torch.")
    shape = ", ".join(map(str, constant.shape))
    ir = small(f"x: {x}", weights=f"c: {dtype}[{shape}]", made="aten.mul.Tensor(x, c)")
    ir.params[0].param = Param(("c",), "constant", from_tensor(constant))
    return ir


@pytest.mark.parametrize(
    ("x", "constant"),
    [
        ("float32[3]", torch.tensor(0.1)),
        ("bfloat16[3]", torch.tensor(0.1, dtype=torch.bfloat16)),
        ("float32[3]", torch.tensor(0.5, dtype=torch.float64)),
        ("float16[3]", torch.tensor(3)),
        ("int64[3]", torch.tensor(3, dtype=torch.int32)),
        ("float32[]", torch.tensor(0.1)),
    ],
)
def test_the_dtype_of_the_result_decides(x: str, constant: Tensor) -> None:
    """A 0-d tensor of the same or a lower category does not affect the dtype."""
    after = optimized(_times_constant(x, constant), SIZES, exact=True)
    assert len(after.nodes[0].inputs) == 1


@pytest.mark.parametrize(
    ("x", "constant"),
    [
        ("float32[3]", torch.tensor([0.5])),  # not 0-d
        ("int64[3]", torch.tensor(0.5)),  # converts them to floats
        ("float32[]", torch.tensor(0.5, dtype=torch.float64)),  # two 0-d tensors: the wider one decides
        ("bfloat16[3]", torch.tensor(0.1)),  # is rounded when it is converted
        ("float32[3]", torch.tensor(True)),
        ("float32[3]", torch.tensor(float("nan"))),
        ("complex64[3]", torch.tensor(0.5)),
    ],
)
def test_a_constant_that_would_matter_stays_a_tensor(x: str, constant: Tensor) -> None:
    """Where the dtype, or a bit, could be another one, nothing changes."""
    ir = _times_constant(x, constant)
    after, _ = optimize(ir, passes=SIZES)
    assert text(after) == text(ir)


def test_arguments_are_numbers_of_the_front() -> None:
    """Bounds of slices are clamped to the size, and -1 is resolved."""
    ir = small(
        "x: float32[2, 8]",
        tail="aten.slice.Tensor(x, 1, -3, 9223372036854775807)",
        one="aten.select.int(tail, 1, -1)",
        column="aten.unsqueeze.default(one, 1)",
        wide="aten.expand.default(column, [-1, 4])",
        neg="aten.neg.default(wide)",
    )
    assert text(optimized(ir, SIZES, exact=True)) == lines("""
        graph(x: float32[2, 8]) {
          slice: float32[2, 3] strides [8, 1] = aten.slice.Tensor(self=x, dim=1, start=5, end=8, step=1)
          select: float32[2] strides [8] = aten.select.int(self=slice, dim=1, index=2)
          column: float32[2, 1] strides [8, 1] = aten.unsqueeze.default(self=select, dim=1)
          expand: float32[2, 4] strides [8, 0] = aten.expand.default(self=column, size=[2, 4], implicit=False)
          neg: float32[2, 4] = aten.neg.default(self=expand)
          return neg
        }
    """)


def test_open_sizes_stay_as_they_are_written() -> None:
    """A bound with a dynamic size is kept; -1 of an expand is resolved to that size."""

    def forward(self: nn.Module, x: Tensor) -> Tensor:
        return x[-3:].exp() + x.sum(0, keepdim=True).expand(3, -1)

    ir = captured(
        module(forward), torch.randn(5, 4), dynamic_shapes={"x": {0: torch.export.Dim("n", min=4, max=8), 1: None}}
    )
    after, report = proved(ir, SIZES, exact=True)
    assert after.node("slice_1")["start"] == -3
    assert [change.rule for change in report.changes] == ["expand_sizes"]
