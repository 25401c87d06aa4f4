"""No-op calls are removed: bit-identical, with the same shape, dtype and strides, and never visibly to the caller."""

import pytest
import torch
from torch.export import Dim

from tests.rewriting import lines, optimized, proved, small, text
from torch_ir import IR, IRExecutor, extract_ir
from torch_ir.ir import Param
from torch_ir.ir.graph.constant_data import TensorData
from torch_ir.passes.clean.same_layout import is_same_shape

_LEFT = lines("""
    graph(x: float32[2, 3]) {
      exp: float32[2, 3] = aten.exp.default(self=x)
      return exp
    }
""")


def _ops(ir: IR) -> list[str]:
    return [node.op_type.split(".")[1] for node in ir.nodes]


def _with_constant(ir: IR, name: str, numbers: object, dtype: str) -> IR:
    """Return the graph with one weight as a constant with values."""
    param = next(param for param in ir.params if param.name == name)
    param.param = Param((name,), "constant", TensorData.from_numbers(numbers, dtype))
    return ir


@pytest.mark.parametrize(
    "call",
    [
        "aten.alias.default(x)",
        "aten.detach.default(x)",
        "aten.lift_fresh.default(x)",
        "aten.positive.default(x)",
        "aten.dropout.default(x, 0.5, False)",
        "aten.dropout.default(x, 0.0, True)",
        "aten.feature_dropout.default(x, 0.5, False)",
        "aten.expand.default(x, [2, -1])",
        "aten.slice.Tensor(x, 1, 0, 9223372036854775807)",
        "aten.slice.Tensor(x, -1, -3, 3)",
        "aten.narrow.default(x, 0, 0, 2)",
        "aten.repeat.default(x, [1, 1])",
        "aten.tile.default(x, [1])",
        "aten.constant_pad_nd.default(x, [0, 0, 0, 0], 1.0)",
        "aten.pad.default(x, [0, 0], 'constant', None)",
        "aten.cat.default([x], 1)",
        "aten.mul.Tensor(x, 1)",
        "aten.mul.Scalar(x, 1.0)",
        "aten.div.Tensor(x, 1)",
        "aten.pow.Tensor_Scalar(x, 1)",
        "aten.sub.Tensor(x, 0)",
        "aten.add.Tensor(x, -0.0)",
    ],
)
def test_what_changes_nothing_goes(call: str) -> None:
    """exp(f(x)) is exp(x) for every f that returns its input."""
    assert text(optimized(small("x: float32[2, 3]", same=call, exp="aten.exp.default(same)"), ["identities"])) == _LEFT


@pytest.mark.parametrize(
    ("inputs", "call"),
    [
        ("x: int64[3]", "aten.mul.Tensor(x, 1.0)"),  # a float now
        ("x: int64[3]", "aten.div.Tensor(x, 1)"),
        ("x: int64[3]", "aten.pow.Tensor_Scalar(x, 1.0)"),
        ("x: float32[3]", "aten.add.Tensor(x, 0.0)"),  # -0.0 + 0.0 is 0.0
        ("x: float32[3]", "aten.sub.Tensor(x, -0.0)"),
        ("x: float32[3]", "aten.mul.Tensor(x, 0)"),  # NaN stays NaN
        ("x: float32[3]", "aten.dropout.default(x, 0.5, True)"),
        ("x: float32[3]", "aten.slice.Tensor(x, 0, 0, 2)"),
        ("x: float32[4]", "aten.slice.Tensor(x, 0, 0, 4, 2)"),
        ("x: float32[3]", "aten.expand.default(x, [2, 3])"),
        ("x: float32[3]", "aten.constant_pad_nd.default(x, [1, -1])"),  # the same shape, other elements
        ("x: float32[3]", "aten.sum.dim_IntList(x, [], True)"),
        ("x: float32[1, 3]", "aten.sum.dim_IntList(x, [0], True)"),  # 0 + -0.0 is 0.0
    ],
)
def test_what_changes_something_stays(inputs: str, call: str) -> None:
    """Another dtype, another shape, another sign of zero, random numbers: none of them is nothing."""
    ir = small(inputs, changed=call, exp="aten.exp.default(changed)")
    assert _ops(optimized(ir, ["identities"], exact=True)) == _ops(ir)


def test_special_numbers_stay_what_they_are() -> None:
    """NaN, infinities, signed zeros and denormals, bit for bit."""
    ir = small(
        "x: float32[8]",
        mul="aten.mul.Tensor(x, 1)",
        sub="aten.sub.Tensor(mul, 0)",
        neg="aten.neg.default(sub)",
        neg_1="aten.neg.default(neg)",
        relu="aten.relu.default(neg_1)",
        clamp="aten.clamp.default(relu, -1.0, 6.0)",
        add="aten.add.Tensor(clamp, -0.0)",
        abs="aten.abs.default(neg)",
        stack="aten.stack.default([add, abs])",
    )
    after = optimized(ir, ["identities"], exact=True)
    assert _ops(after) == ["clamp", "abs", "stack"]
    x = torch.tensor([0.0, -0.0, float("nan"), float("inf"), -float("inf"), 1e-45, -1e-45, 7.0])
    one, other = (IRExecutor(graph).execute((x,))[0].view(torch.int32) for graph in (ir, after))
    assert torch.equal(one, other)


def test_whole_numbers_may_have_a_zero_added() -> None:
    """They have no -0."""
    ir = small("x: int64[3]", add="aten.add.Tensor(x, 0)", neg="aten.neg.default(add)")
    assert _ops(optimized(ir, ["identities"], exact=True)) == ["neg"]


def test_adding_zero_goes_where_rounding_may_change() -> None:
    """Level basic does not distinguish -0.0 from 0.0, and divides once."""
    ir = small(
        "x: float32[3], y: float32[3]",
        add="aten.add.Tensor(x, 0.0)",
        reciprocal="aten.reciprocal.default(y)",
        mul="aten.mul.Tensor(reciprocal, add)",
    )
    assert text(optimized(ir, ["near-identities"])) == lines("""
        graph(x: float32[3], y: float32[3]) {
          div: float32[3] = aten.div.Tensor(self=x, other=y)
          return div
        }
    """)


def test_a_reciprocal_stays_where_it_is_needed() -> None:
    """It has other consumers, or it converts integers to floats."""
    shared = small(
        "x: float32[3], y: float32[3]",
        ["mul", "reciprocal"],
        reciprocal="aten.reciprocal.default(y)",
        mul="aten.mul.Tensor(x, reciprocal)",
    )
    whole = small(
        "x: float16[3], y: int64[3]",
        reciprocal="aten.reciprocal.default(y)",
        mul="aten.mul.Tensor(x, reciprocal)",
    )
    for ir in (shared, whole):
        assert _ops(optimized(ir, ["near-identities"])) == ["reciprocal", "mul"]


def test_copies_go_where_nobody_sees_them() -> None:
    """A clone with its source's strides is removed; one that changes strides, or is returned, is kept."""
    ir = small(
        "x: float32[2, 3]",
        ["exp", "neg", "held", "relu"],
        relu="aten.relu.default(x)",
        clone="aten.clone.default(relu)",
        exp="aten.exp.default(clone)",
        t="aten.t.default(relu)",
        packed="aten.contiguous.default(t)",
        neg="aten.neg.default(packed)",
        held="aten.clone.default(relu)",
    )
    after, report = proved(ir, ["identities"], exact=True)
    assert [node.name for node in after.nodes] == ["relu", "exp", "t", "packed", "neg", "held"]
    assert [(decline.node, decline.why) for decline in report.declined] == [
        ("held", "the caller would receive a tensor that shares memory with another one")
    ]


def test_a_copy_of_an_input_stays() -> None:
    """A caller may pass an input with other strides than declared."""
    ir = small("x: float32[2, 3]", same="aten.contiguous.default(x)", exp="aten.exp.default(same)")
    after, report = proved(ir, ["identities"], exact=True)
    assert _ops(after) == ["contiguous", "exp"]
    assert [decline.why for decline in report.declined] == [
        "it copies an input, which a caller may pass with other strides"
    ]


def test_a_copy_that_is_reached_into_stays() -> None:
    """as_strided reads memory, not elements."""
    ir = small(
        "x: float32[2, 3]",
        relu="aten.relu.default(x)",
        slice="aten.slice.Tensor(relu, 0, 1, 2)",
        clone="aten.clone.default(slice)",
        strided="aten.as_strided.default(clone, [2], [1], 0)",
    )
    assert "clone" in _ops(optimized(ir, ["identities"], exact=True))


def test_constants_of_the_code_count_where_their_shape_does() -> None:
    """mul(x, ones) is x, unless broadcasting makes the result larger."""
    same = small("x: float32[2, 3]", weights="c: float32[3]", mul="aten.mul.Tensor(x, c)", exp="aten.exp.default(mul)")
    wide = small("x: float32[3]", weights="c: float32[2, 3]", mul="aten.mul.Tensor(x, c)", exp="aten.exp.default(mul)")
    some = small("x: float32[3]", weights="c: float32[3]", mul="aten.mul.Tensor(x, c)", exp="aten.exp.default(mul)")
    assert _ops(optimized(_with_constant(same, "c", [1.0, 1.0, 1.0], "float32"), ["identities"])) == ["exp"]
    assert _ops(optimized(_with_constant(wide, "c", [[1.0] * 3] * 2, "float32"), ["identities"])) == ["mul", "exp"]
    assert _ops(optimized(_with_constant(some, "c", [1.0, 2.0, 1.0], "float32"), ["identities"])) == ["mul", "exp"]


def test_a_weight_may_be_anything() -> None:
    """A weight is never assumed to be 1."""
    ir = small("x: float32[3]", weights="w: float32[3]", mul="aten.mul.Tensor(x, w)", exp="aten.exp.default(mul)")
    assert _ops(optimized(ir, ["identities"])) == ["mul", "exp"]


@pytest.mark.parametrize(("value", "left"), [(True, "neg"), (False, "relu")])
def test_a_choice_that_is_made_already(value: bool, left: str) -> None:
    """where with a mask that is the same everywhere is one of its sides."""
    ir = small(
        "x: float32[2]",
        weights="c: bool[2]",
        neg="aten.neg.default(x)",
        relu="aten.relu.default(x)",
        where="aten.where.self(c, neg, relu)",
        exp="aten.exp.default(where)",
    )
    after = optimized(_with_constant(ir, "c", [value, value], "bool"), ["identities"], exact=True)
    assert _ops(after) == [left, "exp"]


def test_the_largest_of_one() -> None:
    """amax over a dimension of size 1 is a no-op if the dimension is kept."""
    kept = small("x: float32[2, 1]", largest="aten.amax.default(x, [1], True)", exp="aten.exp.default(largest)")
    gone = small("x: float32[2, 1]", largest="aten.amax.default(x, [1])", exp="aten.exp.default(largest)")
    assert _ops(optimized(kept, ["identities"], exact=True)) == ["exp"]
    assert _ops(optimized(gone, ["identities"], exact=True)) == ["amax", "exp"]


def test_masks_that_mask_nothing() -> None:
    """masked_fill by False, and with True, or with False."""
    ir = small(
        "x: float32[2], m: bool[2]",
        ["fill", "and_1"],
        weights="no: bool[2]",
        masked="aten.masked_fill.Scalar(x, no, 3.0)",
        fill="aten.exp.default(masked)",
        ones="aten.full.default([2], True)",
        both="aten.bitwise_and.Tensor(ones, m)",
        either="aten.logical_or.default(both, no)",
        and_1="aten.logical_not.default(either)",
    )
    after = optimized(_with_constant(ir, "no", [False, False], "bool"), ["identities"], exact=True)
    assert _ops(after) == ["exp", "logical_not"]


def test_a_negated_choice_is_the_other_choice() -> None:
    """where(not m, x, y) is where(m, y, x); `not` of a number is not a mask."""
    ir = small(
        "m: bool[2], x: float32[2], y: float32[2]",
        no="aten.logical_not.default(m)",
        where="aten.where.self(no, x, y)",
    )
    assert text(optimized(ir, ["identities"], exact=True)) == lines("""
        graph(m: bool[2], x: float32[2], y: float32[2]) {
          where_1: float32[2] = aten.where.self(condition=m, self=y, other=x)
          return where_1
        }
    """)
    numbers = small("m: float32[2], x: float32[2]", n="aten.logical_not.default(m)", w="aten.where.self(n, x, m)")
    assert _ops(optimized(numbers, ["identities"], exact=True)) == ["logical_not", "where"]


@pytest.mark.parametrize("name", ["abs", "ceil", "floor", "round", "sgn", "sign", "trunc"])
def test_once_is_enough(name: str) -> None:
    """f(f(x)) is f(x)."""
    ir = small("x: float32[3]", one=f"aten.{name}.default(x)", two=f"aten.{name}.default(one)")
    assert [node.name for node in optimized(ir, ["identities"], exact=True).nodes] == ["one"]


@pytest.mark.parametrize(("name", "dtype"), [("neg", "float32"), ("logical_not", "bool"), ("bitwise_not", "int64")])
def test_twice_is_nothing(name: str, dtype: str) -> None:
    """f(f(x)) is x."""
    ir = small(
        f"x: {dtype}[3]", one=f"aten.{name}.default(x)", two=f"aten.{name}.default(one)", end="aten.sin.default(two)"
    )
    assert _ops(optimized(ir, ["identities"], exact=True)) == ["sin"]


def test_not_twice_of_a_number_is_whether_it_is_one() -> None:
    """logical_not returns bool, so twice is not a no-op; and abs of an overflowed number is not abs of the number."""
    twice = small(
        "x: float32[3]",
        one="aten.logical_not.default(x)",
        two="aten.logical_not.default(one)",
        end="aten.sin.default(two)",
    )
    assert _ops(optimized(twice, ["identities"], exact=True)) == ["logical_not", "logical_not", "sin"]
    wrapped = small("x: uint8[3]", one="aten.neg.default(x)", two="aten.abs.default(one)")
    assert _ops(optimized(wrapped, ["identities"], exact=True)) == ["neg", "abs"]


@pytest.mark.parametrize(
    ("first", "second", "left"),
    [
        ("relu.default(x)", "relu.default(a)", "aten.relu.default(self=x)"),
        ("relu.default(x)", "hardtanh.default(a, 0, 6)", "aten.hardtanh.default(self=x, min_val=0, max_val=6)"),
        ("relu.default(x)", "clamp.default(a, -1, 6)", "aten.clamp.default(self=x, min=0, max=6)"),
        ("clamp.default(x, 0, 9)", "clamp_max.default(a, 5)", "aten.clamp.default(self=x, min=0, max=5)"),
        ("clamp_min.default(x, 2)", "clamp_min.default(a, 1)", "aten.clamp_min.default(self=x, min=2)"),
        ("clamp.default(x, 0, 1)", "clamp.default(a, 2, 3)", "aten.clamp.default(self=x, min=2, max=2)"),
    ],
)
def test_two_bounds_are_one(first: str, second: str, left: str) -> None:
    """The second bound is applied to the bounds of the first."""
    ir = small("x: float32[64]", a=f"aten.{first}", b=f"aten.{second}")
    (node,) = optimized(ir, ["identities"], exact=True).nodes
    assert left in str(optimized(ir, ["identities"])), node


def test_bounds_that_stay_two() -> None:
    """Another reader, bounds the wrong way round, a dtype in between, or a zero whose sign depends on the order."""
    read = small("x: float32[4]", ["a", "b"], a="aten.relu.default(x)", b="aten.clamp_max.default(a, 5)")
    crossed = small("x: float32[4]", a="aten.clamp.default(x, 3, 1)", b="aten.clamp_max.default(a, 5)")
    promoted = small("x: int64[4]", a="aten.relu.default(x)", b="aten.clamp_max.default(a, 2.5)")
    zero = small("x: float32[64]", a="aten.clamp_max.default(x, -2)", b="aten.clamp.default(a, 0.0, 0.5)")
    for ir in (read, crossed, promoted, zero):
        assert len(optimized(ir, ["identities"], exact=True).nodes) == 2


def test_one_of_several_is_all_of_it() -> None:
    """split into one, stack of one, unbind of one."""
    ir = small(
        "x: float32[1, 3]",
        relu="aten.relu.default(x)",
        split="aten.split.Tensor(relu, 3, 1)",
        unbind="aten.unbind.int(split, 0)",
        stack="aten.stack.default([unbind], 1)",
        exp="aten.exp.default(stack)",
    )
    assert _ops(optimized(ir, ["identities"], exact=True)) == ["relu", "reshape", "reshape", "exp"]
    assert _ops(optimized(ir, ["identities", "reshapes"], exact=True)) == ["relu", "reshape", "exp"]


@pytest.mark.parametrize(("returns", "left"), [(["exp"], ["exp"]), (["exp", "drop_1"], ["native_dropout", "exp"])])
def test_idle_dropout_with_a_mask(returns: list[str], left: list[str]) -> None:
    """native_dropout is removed only if its mask is unused."""
    drop = "aten.native_dropout.default(x, 0.5, False)"
    ir = small("x: float32[3]", returns, drop=drop, exp="aten.exp.default(drop_0)")
    assert _ops(optimized(ir, ["identities"], exact=True)) == left


def test_open_sizes() -> None:
    """A full slice of a dynamic size is removed; sizes are equal only if their expressions are."""

    class Whole(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x[:, : x.shape[1]].expand(x.shape[0], -1)[1:].exp()

    sizes = {0: Dim("rows", min=4, max=64), 1: Dim("columns", min=4, max=64)}
    ir = extract_ir(Whole().eval(), (torch.empty(6, 5, device="meta"),), dynamic_shapes={"x": sizes})
    assert _ops(ir) == ["slice", "expand", "slice", "exp"]
    assert _ops(optimized(ir, ["identities"], exact=True)) == ["slice", "exp"]
    assert is_same_shape(("2*rows", 3), ("rows + rows", 3))
    assert not is_same_shape(("rows",), ("min(rows, 5000)",))
