"""Arithmetic after a convolution or a linear layer is folded into its weights."""

import pytest

from tests.rewriting import lines, optimized, proved, small, text
from torch_ir import IR
from torch_ir.analysis.values.prologue import split_prologue
from torch_ir.passes.weights.fold_arithmetic import fold_arithmetic

_X = "x: float32[2, 4, 5, 5], given: float32[6, 1, 1], kernel: float32[6, 4, 3, 3]"
_WEIGHTS = (
    "w: float32[6, 4, 3, 3], b: float32[6], c: float32[6, 1, 1], d: float32[1, 6, 1, 1], s: float32[], "
    "one: float32[1], row: float32[3], place: float32[3, 3], many: float32[2, 6, 1, 1], grouped: float32[4, 3, 3, 3]"
)
_CONV = "aten.conv2d.default(x, w, b)"


def _every(ir: IR) -> list[str]:
    """The operators that run every time."""
    return [node.op_type.split(".")[1] for node in split_prologue(ir)[1]]


def test_an_addition_goes_into_the_bias() -> None:
    """linear(x, w) + c is linear(x, w, c)."""
    ir = small(
        "x: float32[2, 3]",
        weights="w: float32[4, 3], c: float32[4]",
        linear="aten.linear.default(x, w)",
        add="aten.add.Tensor(linear, c)",
    )
    assert text(optimized(ir, [fold_arithmetic])) == lines("""
        graph(x: float32[2, 3]) {
          param w: float32[4, 3] = "w"
          param c: float32[4] = "c"
          linear_1: float32[2, 4] = aten.linear.default(input=x, weight=w, bias=c)
          return linear_1
        }
    """)


def test_a_factor_goes_into_the_weights() -> None:
    """conv(x, w, b) * c is conv(x, w * c, b * c)."""
    ir = small(
        "x: float32[2, 3, 5]",
        weights="w: float32[4, 3, 3], b: float32[4], c: float32[4, 1]",
        conv="aten.conv1d.default(x, w, b)",
        mul="aten.mul.Tensor(conv, c)",
    )
    assert text(optimized(ir, [fold_arithmetic])) == lines("""
        graph(x: float32[2, 3, 5]) {
          param w: float32[4, 3, 3] = "w"
          param b: float32[4] = "b"
          param c: float32[4, 1] = "c"
          reshape: float32[4] = aten.reshape.default(self=c, shape=[4])
          reshape_1: float32[4, 1, 1] = aten.reshape.default(self=reshape, shape=[4, 1, 1])
          mul_1: float32[4, 3, 3] = aten.mul.Tensor(self=w, other=reshape_1)
          mul_2: float32[4] = aten.mul.Tensor(self=b, other=reshape)
          conv1d: float32[2, 4, 3] = aten.conv1d.default(input=x, weight=mul_1, bias=mul_2, \
stride=[1], padding=[0], dilation=[1], groups=1)
          return conv1d
        }
    """)


@pytest.mark.parametrize(
    "conv", [_CONV, "aten.conv2d.default(x, w)", "aten.conv_transpose2d.input(x, grouped, groups=2)"]
)
@pytest.mark.parametrize(
    "call",
    [
        "aten.add.Tensor(conv, d)", "aten.add.Tensor(s, conv)", "aten.add.Tensor(conv, 2.5)",
        "aten.sub.Tensor(conv, c)", "aten.sub.Tensor(c, conv)", "aten.sub.Tensor(conv, 2)",
        "aten.mul.Tensor(conv, c)", "aten.mul.Tensor(one, conv)", "aten.mul.Tensor(conv, 0.3)",
        "aten.div.Tensor(conv, 8)",
    ],
)  # fmt: skip
def test_every_operator(conv: str, call: str) -> None:
    """Numbers, weights of one element, and weights of one element for each channel, on either side."""
    after = optimized(small(_X, weights=_WEIGHTS, conv=conv, after=call), [fold_arithmetic])
    assert _every(after) == [conv.split(".")[1]]


def test_one_after_the_other() -> None:
    """Operators after a folded one are folded too."""
    ir = small(
        _X, weights=_WEIGHTS, conv=_CONV, mul="aten.mul.Tensor(conv, c)", add="aten.add.Tensor(mul, d)",
        div="aten.div.Tensor(add, 4.0)", relu="aten.relu.default(div)",
    )  # fmt: skip
    assert _every(optimized(ir, [fold_arithmetic])) == ["conv2d", "relu"]


@pytest.mark.parametrize("dtype", ["float64", "bfloat16"])
def test_other_dtypes(dtype: str) -> None:
    """Weights of few bits are multiplied in float32 and rounded once."""
    ir = small(
        f"x: {dtype}[2, 3]",
        weights=f"w: {dtype}[4, 3], b: {dtype}[4], c: {dtype}[4]",
        linear="aten.linear.default(x, w, b)",
        mul="aten.mul.Tensor(linear, c)",
        add="aten.add.Tensor(mul, 1.5)",
    )
    after = optimized(ir, [fold_arithmetic])
    (linear,) = split_prologue(after)[1]
    assert {tensor.dtype for tensor in (*linear.inputs, *linear.outputs)} == {dtype}


@pytest.mark.parametrize("call", ["aten.mul.Tensor(linear, c)", "aten.mul.Tensor(linear, 1e-6)"])
def test_weights_in_float16_take_no_factor(call: str) -> None:
    """Weights of about 0.1 times 1e-6 are subnormal in float16, where few bits are left; a sign may go into them."""
    ir = small(
        "x: float16[2, 3]",
        weights="w: float16[4, 3], c: float16[4]",
        linear="aten.linear.default(x, w)",
        after=call,
        sub="aten.sub.Tensor(1.0, after)",
    )
    after, report = proved(ir, [fold_arithmetic])
    assert _every(after) == ["linear", "mul", "sub"]
    assert any("may exceed their range" in decline.why for decline in report.declined)
    ir = small("x: float16[2, 3]", weights="w: float16[4, 3], c: float16[4]",
               linear="aten.linear.default(x, w)", sub="aten.sub.Tensor(c, linear)")  # fmt: skip
    assert _every(optimized(ir, [fold_arithmetic])) == ["linear"]


@pytest.mark.parametrize(
    "call",
    [
        "aten.add.Tensor(conv, given)",  # known only in a run
        "aten.add.Tensor(conv, row)",  # along the last dimension
        "aten.add.Tensor(conv, place)",  # one for each place
        "aten.add.Tensor(conv, many)",  # one for each image
        "aten.mul.Tensor(conv, x_1)",  # the consumer of x
        "aten.add.Tensor(conv, c, alpha=2)",
        "aten.div.Tensor(c, conv)",
        "aten.div.Tensor(conv, 0)",
        "aten.div.Tensor(conv, 5e-324)",  # whose reciprocal is infinite
        "aten.div.Tensor(conv, c)",  # which may have a zero in it
        "aten.div.Tensor_mode(conv, c, rounding_mode='floor')",
        "aten.add.Tensor(conv, conv)",
        "aten.mul.Tensor(conv, 1j)",
        "aten.mul.Tensor(low, c)",  # casts bfloat16 to float32
    ],
)
def test_stays(call: str) -> None:
    """Operands other than numbers and per-channel weights are not folded, nor changes of dtype."""
    ir = small(
        f"{_X}, y: bfloat16[2, 4, 5, 5]", ["after"], weights=f"{_WEIGHTS}, v: bfloat16[6, 4, 3, 3]",
        x_1="aten.mean.dim(x, [1, 2, 3], True)", conv=_CONV, low="aten.conv2d.default(y, v)", after=call,
    )  # fmt: skip
    assert text(optimized(ir, [fold_arithmetic])) == text(ir)


def test_a_result_that_grows_stays() -> None:
    """One channel and six numbers broadcast to six channels, which the convolution cannot produce."""
    ir = small(
        "x: float32[2, 4, 5, 5]",
        weights="w: float32[1, 4, 3, 3], c: float32[6, 1, 1]",
        conv="aten.conv2d.default(x, w)",
        add="aten.add.Tensor(conv, c)",
    )
    assert text(optimized(ir, [fold_arithmetic])) == text(ir)


@pytest.mark.parametrize(
    ("conv", "returns", "why"),
    [
        (_CONV, ["conv", "after"], "'conv' is read elsewhere too"),
        ("aten.conv2d.default(x, kernel)", ["after"], "'kernel' is not a constant weight"),
    ],
)
def test_declines(conv: str, returns: list[str], why: str) -> None:
    """A convolution that is read elsewhere, and a weight that is an input."""
    ir = small(_X, returns, weights=_WEIGHTS, conv=conv, after="aten.mul.Tensor(conv, c)")
    after, report = proved(ir, [fold_arithmetic])
    assert text(after) == text(ir)
    assert [decline.why for decline in report.declined] == [why]


def test_a_tied_weight_is_not_kept_twice() -> None:
    """Logits that are scaled: the table of embeddings is the weight, and a second one would be a large one."""
    ir = small(
        "tokens: int64[2, 3]",
        weights="table: float32[9, 4], b: float32[9]",
        embedding="aten.embedding.default(table, tokens)",
        logits="aten.linear.default(embedding, table)",
        add="aten.add.Tensor(logits, b)",
        mul="aten.mul.Tensor(add, 0.5)",
    )
    after, report = proved(ir, [fold_arithmetic])
    assert _every(after) == ["embedding", "linear", "mul"]
    assert [decline.why for decline in report.declined] == ["'table' is read elsewhere too"]


def test_an_unbatched_convolution() -> None:
    """Channels are counted from the end, so one image without a batch is the same."""
    ir = small(
        "x: float32[4, 5, 5]",
        weights="w: float32[6, 4, 3, 3], c: float32[6, 1, 1]",
        conv="aten.conv2d.default(x, w)",
        add="aten.mul.Tensor(conv, c)",
    )
    assert _every(optimized(ir, [fold_arithmetic])) == ["conv2d"]
