"""Canonical form: two equivalent models become the same graph, bit-identical in results."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.proof import captured, module
from tests.rewriting import lines, optimized, proved, small, text
from torch_ir import IRExecutor, diff, extract_ir, meta_init
from torch_ir.ir import IR
from torch_ir.ops.torch_types import TORCH_DTYPES
from torch_ir.passes import optimize
from torch_ir.passes.optimize_levels import BASIC, CLEAN

Forward = Callable[["_Model", Tensor, Tensor], Tensor | tuple[Tensor, ...]]


class _Model(nn.Module):
    """A model that is its forward function, with a layer to use."""

    def __init__(self, forward: Forward) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)
        self.dropout = nn.Dropout(0.5)
        self.relu6 = nn.ReLU6()
        self._forward = forward

    def forward(self, x: Tensor, y: Tensor) -> Tensor | tuple[Tensor, ...]:
        return self._forward(self, x, y)


PAIRS: dict[str, tuple[Forward, Forward]] = {
    "view, reshape": (lambda m, x, y: x.view(2, 32).relu(), lambda m, x, y: x.reshape(2, -1).relu()),
    "flatten, reshape": (lambda m, x, y: x.flatten(1).relu(), lambda m, x, y: x.reshape(2, 32).relu()),
    "alpha": (lambda m, x, y: torch.add(x, y, alpha=1), lambda m, x, y: x + y),
    "alpha of -1": (lambda m, x, y: torch.add(x, y, alpha=-1), lambda m, x, y: x - y),
    "order of a sum": (lambda m, x, y: x + y, lambda m, x, y: y + x),
    "order of a product": (lambda m, x, y: x * y.exp(), lambda m, x, y: y.exp() * x),
    "weights last": (lambda m, x, y: m.layer.bias * x, lambda m, x, y: x * m.layer.bias),
    "dropout": (lambda m, x, y: m.dropout(x).exp(), lambda m, x, y: x.exp()),
    "transpose, permute": (lambda m, x, y: x.transpose(1, 2).exp(), lambda m, x, y: x.permute(0, 2, 1).exp()),
    "transpose from the end": (lambda m, x, y: x.transpose(-1, -2).exp(), lambda m, x, y: x.mT.exp()),
    "relu, clamp": (lambda m, x, y: F.relu(x), lambda m, x, y: x.clamp(min=0)),
    "relu, clamp_min": (lambda m, x, y: torch.relu(x), lambda m, x, y: torch.clamp_min(x, 0.0)),
    "relu6, hardtanh": (lambda m, x, y: m.relu6(x), lambda m, x, y: F.hardtanh(x, 0, 6)),
    "relu6, clamp": (lambda m, x, y: m.relu6(x), lambda m, x, y: x.clamp(0, 6)),
    "minus": (lambda m, x, y: x - y, lambda m, x, y: x + (-y)),
    "minus minus": (lambda m, x, y: x + y, lambda m, x, y: x - (-y)),
    "rsub": (lambda m, x, y: torch.rsub(x, y), lambda m, x, y: y - x),
    "one minus": (lambda m, x, y: 1 - x, lambda m, x, y: -x + 1.0),
    "minus a number": (lambda m, x, y: x - 2, lambda m, x, y: x + -2.0),
    "number first": (lambda m, x, y: 2 * x, lambda m, x, y: x * 2.0),
    "chunk, split": (lambda m, x, y: x.chunk(2, -1)[1].exp(), lambda m, x, y: x.split(4, 2)[1].exp()),
    "split sizes": (lambda m, x, y: x.split([4, 4], 2)[1].exp(), lambda m, x, y: x.split(4, -1)[1].exp()),
    "window beyond the input": (
        lambda m, x, y: F.avg_pool2d(x[None], 64, ceil_mode=True),
        lambda m, x, y: F.avg_pool2d(x[None], x.shape[1:]),
    ),
    "square, pow": (lambda m, x, y: x.square(), lambda m, x, y: x.pow(2)),
    "product, pow": (lambda m, x, y: x * x, lambda m, x, y: x**2.0),
    "sqrt, pow": (lambda m, x, y: x.exp().sqrt(), lambda m, x, y: x.exp() ** 0.5),
    "rsqrt, pow": (lambda m, x, y: x.exp().rsqrt(), lambda m, x, y: x.exp() ** -0.5),
    "mean": (lambda m, x, y: x.mean(-1), lambda m, x, y: x.mean(dim=2)),
    "mean of all": (lambda m, x, y: x.mean(), lambda m, x, y: x.mean((2, 0, 1))),
    "sum in its own dtype": (lambda m, x, y: x.sum(-1, dtype=torch.float32), lambda m, x, y: x.sum(2)),
    "softmax": (lambda m, x, y: F.softmax(x, -1), lambda m, x, y: torch.softmax(x, 2, dtype=torch.float32)),
    "_softmax": (lambda m, x, y: torch._softmax(x, -1, False), lambda m, x, y: x.softmax(2)),
    "cat of one": (lambda m, x, y: torch.cat([x]).exp(), lambda m, x, y: x.exp()),
    "concat": (lambda m, x, y: torch.concat([x, y], -1), lambda m, x, y: torch.cat((x, y), 2)),
    "multiply": (lambda m, x, y: torch.multiply(x, y), lambda m, x, y: x * y),
    "divide": (lambda m, x, y: torch.true_divide(x, 4), lambda m, x, y: x / 4.0),
    "matmul, bmm": (lambda m, x, y: x @ y.mT, lambda m, x, y: torch.bmm(x, y.transpose(1, 2))),
    "and": (lambda m, x, y: (x > 0) & (y > 0), lambda m, x, y: torch.bitwise_and(x > 0.0, y > 0.0)),
    "slice": (lambda m, x, y: x[:, -3:].exp(), lambda m, x, y: x[:, 1:4].exp()),
    "select": (lambda m, x, y: x[:, -1].exp(), lambda m, x, y: x[:, 3].exp()),
    "contiguous": (lambda m, x, y: x.exp().contiguous().tanh(), lambda m, x, y: x.exp().tanh()),
    "cast to itself": (lambda m, x, y: x.float().exp(), lambda m, x, y: x.exp()),
    "0-d tensor": (lambda m, x, y: x * torch.tensor(2.0), lambda m, x, y: x * 2.0),
    "mask made in the model": (
        lambda m, x, y: (x @ y.mT).masked_fill(torch.ones(4, 4).tril() == 0, -1.0),
        lambda m, x, y: (x @ y.mT).masked_fill(torch.tril(torch.full((4, 4), 1.0), 0) == 0.0, -1.0),
    ),
}  # fmt: skip

LINEAR: dict[str, tuple[Forward, Forward]] = {
    "product with a weight": (lambda m, x, y: m.layer(x), lambda m, x, y: x @ m.layer.weight.t() + m.layer.bias),
    "addmm": (
        lambda m, x, y: m.layer(x.view(8, 8)),
        lambda m, x, y: torch.addmm(m.layer.bias, x.view(8, 8), m.layer.weight.t()),
    ),
}


def _captured(forward: Forward) -> IR:
    with meta_init():
        model = _Model(forward).eval()
    return extract_ir(model, (torch.empty(2, 4, 8, device="meta"), torch.empty(2, 4, 8, device="meta")))


@pytest.mark.parametrize("name", PAIRS)
def test_two_spellings_are_one_graph(name: str) -> None:
    """After the clean passes, equivalent models are equal, with the same results."""
    graphs = [optimized(_captured(forward), CLEAN, exact=True) for forward in PAIRS[name]]
    found = diff(*graphs)
    assert found.is_equal, f"{found}\n{graphs[0]}\n{graphs[1]}"


@pytest.mark.parametrize("name", LINEAR)
def test_spellings_of_a_linear_layer_are_one_graph(name: str) -> None:
    """Forms that round differently become the same graph at the next level."""
    graphs = [optimized(_captured(forward), BASIC) for forward in LINEAR[name]]
    found = diff(*graphs)
    assert found.is_equal, f"{found}\n{graphs[0]}\n{graphs[1]}"


# The graph before, after the rules of canonicalize; x and y are float32[4, 6], z is float32[3, 4, 6].
SPELLINGS = {
    "aten.add.Scalar(x, 2)": "aten.add.Tensor(self=x, other=2.0, alpha=1)",
    "aten.mul.Scalar(x, 2)": "aten.mul.Tensor(self=x, other=2.0)",
    "aten.div.Tensor_mode(x, y, rounding_mode=None)": "aten.div.Tensor(self=x, other=y)",
    "aten.mul.Tensor(3, x)": "aten.mul.Tensor(self=x, other=3.0)",
    "aten.sub.Tensor(3, x)": "aten.rsub.Scalar(self=x, other=3.0, alpha=1)",
    "aten.add.Tensor(x, y, alpha=1.0)": "aten.add.Tensor(self=x, other=y, alpha=1)",
    "aten.sub.Tensor(x, y, alpha=-1)": "aten.add.Tensor(self=x, other=y, alpha=1)",
    "aten.sub.Tensor(x, 0.5)": "aten.add.Tensor(self=x, other=-0.5, alpha=1)",
    "aten.sub.Tensor(x, 0)": "aten.add.Tensor(self=x, other=-0.0, alpha=1)",
    "aten.rsub.Tensor(x, y)": "aten.sub.Tensor(self=y, other=x, alpha=1)",
    "aten.square.default(x)": "aten.pow.Tensor_Scalar(self=x, exponent=2)",
    "aten.mul.Tensor(x, x)": "aten.pow.Tensor_Scalar(self=x, exponent=2)",
    "aten.pow.Tensor_Scalar(x, 3.0)": "aten.pow.Tensor_Scalar(self=x, exponent=3)",
    "aten.pow.Tensor_Scalar(x, 0.5)": "aten.sqrt.default(self=x)",
    "aten.pow.Tensor_Scalar(x, -0.5)": "aten.rsqrt.default(self=x)",
    "aten.clamp_min.default(x, 1)": "aten.clamp.default(self=x, min=1.0, max=None)",
    "aten.clamp_max.default(x, 1.5)": "aten.clamp.default(self=x, min=None, max=1.5)",
    "aten.hardtanh.default(x)": "aten.clamp.default(self=x, min=-1.0, max=1.0)",
    "aten.relu6.default(x)": "aten.clamp.default(self=x, min=0.0, max=6.0)",
    "aten.clamp.default(x, 0)": "aten.relu.default(self=x)",
    "aten.clip.default(x, 0.0)": "aten.relu.default(self=x)",
    "aten.softmax.int(x, -1)": "aten.softmax.int(self=x, dim=1, dtype=None)",
    "aten._log_softmax.default(x, 0, False)": "aten.log_softmax.int(self=x, dim=0, dtype=None)",
    "aten.unsqueeze.default(x, -1)": "aten.unsqueeze.default(self=x, dim=2)",
    "aten.stack.default([x, y], -1)": "aten.stack.default(tensors.0=x, tensors.1=y, dim=2)",
    "aten.amax.default(z, [-1, 0])": "aten.amax.default(self=z, dim=[0, 2], keepdim=False)",
    "aten.sum.dim_IntList(x, [1, 0])": "aten.sum.default(self=x, dtype=None)",
    "aten.mean.dim(z, [-2], True)": "aten.mean.dim(self=z, dim=[1], keepdim=True, dtype=None)",
    "aten.multiply.Tensor(x, y)": "aten.mul.Tensor(self=x, other=y)",
    "aten.add.Tensor(y, x)": "aten.add.Tensor(self=x, other=y, alpha=1)",
    "aten.logical_or.default(y, x)": "aten.logical_or.default(self=x, other=y)",
    "aten.mul.Tensor(w, x)": "aten.mul.Tensor(self=x, other=w)",
}  # fmt: skip
DECLINED = [
    "aten.add.Tensor(x, y, alpha=2)",  # a factor
    "aten.add.Tensor(y, x, alpha=2)",  # it belongs to the second
    "aten.sub.Tensor(y, x)",  # no order to choose
    "aten.maximum.default(y, x)",  # of two zeros, torch chooses by position
    "aten.threshold.default(x, 0, 0)",  # NaN becomes 0
    "aten.clamp.default(x, -0.0)",  # the bound is another zero
    "aten.clamp.default(x, 0.0, 3.0)",
    "aten.pow.Tensor_Scalar(x, 2.5)",
    "aten.pow.Tensor_Tensor(x, y)",
    "aten.div.Tensor_mode(x, y, rounding_mode='floor')",
    "aten.mul.Tensor(i, i)",  # whole numbers have no square in this form
    "aten.add.Tensor(i, 2)",
    "aten.sub.Tensor(u, 2)",  # -2 is none of its numbers
    "aten.sum.dim_IntList(x, [0, 1], True)",
    "aten.add.Tensor(x, True, alpha=-1)",  # torch does not subtract bools
]
INPUTS = "x: float32[4, 6], y: float32[4, 6], z: float32[3, 4, 6], i: int64[4, 6], u: uint8[4, 6]"


def _one(call: str) -> IR:
    """A graph of one call with a consumer, so that its result is not a graph output."""
    return small(INPUTS, weights="w: float32[4, 6]", made=call, last="aten.sgn.default(made)")


@pytest.mark.parametrize("call", SPELLINGS)
def test_a_spelling_becomes_the_canonical_one(call: str) -> None:
    """One call before, one call after, bit for bit the same."""
    after = optimized(_one(call), ["canonicalize"], exact=True)
    assert text(after).splitlines()[-4].partition(" = ")[2] == SPELLINGS[call]


@pytest.mark.parametrize("call", DECLINED)
def test_what_is_not_the_same_stays(call: str) -> None:
    """Similar calls that differ in a bit, a dtype or a factor are unchanged."""
    ir = _one(call)
    assert text(optimized(ir, ["canonicalize"], exact=True)) == text(ir)


def test_a_sum_with_a_negation_is_a_difference() -> None:
    """On either side, also with a number, and with other consumers of the negation."""
    ir = small(
        "x: float32[3], y: float32[3]",
        ["right", "left", "number", "twice", "neg"],
        neg="aten.neg.default(y)",
        right="aten.add.Tensor(x, neg)",
        left="aten.add.Tensor(neg, x)",
        number="aten.add.Tensor(neg, 2.0)",
        twice="aten.sub.Tensor(x, neg)",
    )
    assert text(optimized(ir, ["canonicalize"], exact=True)) == lines("""
        graph(x: float32[3], y: float32[3]) {
          neg: float32[3] = aten.neg.default(self=y)
          sub: float32[3] = aten.sub.Tensor(self=x, other=y, alpha=1)
          sub_1: float32[3] = aten.sub.Tensor(self=x, other=y, alpha=1)
          rsub: float32[3] = aten.rsub.Scalar(self=y, other=2.0, alpha=1)
          add: float32[3] = aten.add.Tensor(self=x, other=y, alpha=1)
          return sub, sub_1, rsub, add, neg
        }
    """)


@pytest.mark.parametrize("call", ["aten.add.Tensor(1.0, z)", "aten.add.Tensor(neg, z)", "aten.add.Tensor(neg, 1.0)"])
def test_a_sum_of_complex_numbers_keeps_its_order(call: str) -> None:
    """Infinite parts of the second operand become NaN."""
    ir = small("z: complex64[3], y: complex64[3]", neg="aten.neg.default(y)", add=call)
    after = optimized(ir, ["canonicalize"], exact=True)
    assert text(after) == text(ir)
    z = torch.tensor([complex(float("inf"), 1.0), complex(0.0, -float("inf")), 1 + 2j])
    wanted, made = (IRExecutor(graph, {})(z, z) for graph in (ir, after))
    assert torch.equal(torch.view_as_real(wanted).isnan(), torch.view_as_real(made).isnan())


def test_a_negation_with_a_factor_stays() -> None:
    """add(x, neg(y), alpha=2) has more than a sign."""
    ir = small("x: float32[3]", neg="aten.neg.default(x)", add="aten.add.Tensor(x, neg, alpha=2)")
    assert text(optimized(ir, ["canonicalize"], exact=True)) == text(ir)


@pytest.mark.parametrize("dtype", ["uint8", "int8"])
def test_a_negation_in_a_smaller_integer_dtype_stays(dtype: str) -> None:
    """neg(3: uint8) is 253 and neg(-128: int8) is -128, also after the conversion to int64."""
    ir = small(
        f"x: int64[3], y: {dtype}[3]",
        ["add", "sub"],
        neg="aten.neg.default(y)",
        add="aten.add.Tensor(x, neg)",
        sub="aten.sub.Tensor(x, neg)",
    )
    assert text(optimized(ir, ["canonicalize"], exact=True)) == text(ir)


@pytest.mark.parametrize(
    ("shapes", "op_type"),
    [
        (("2, 3", "3, 4"), "aten.mm.default"),
        (("5, 2, 3", "5, 3, 4"), "aten.bmm.default"),
        (("1, 2, 3", "5, 3, 4"), "aten.matmul.default"),
        (("5, 2, 3", "3, 4"), "aten.matmul.default"),
        (("3", "3, 4"), "aten.matmul.default"),
    ],
)
def test_products_of_matrices_have_the_name_of_their_ranks(shapes: tuple[str, str], op_type: str) -> None:
    """Two matrices, or two equal batches of them; where something is broadcast, matmul stays."""
    ir = small(f"x: float32[{shapes[0]}], y: float32[{shapes[1]}]", made="aten.matmul.default(x, y)")
    assert [node.op_type for node in optimized(ir, ["canonicalize"], exact=True).nodes] == [op_type]


@pytest.mark.parametrize(
    ("call", "after"),
    [
        ("aten.chunk.default(x, 2, -1)", "aten.split.Tensor(self=x, split_size=4, dim=1)"),
        ("aten.chunk.default(x, 3, 1)", "aten.split.Tensor(self=x, split_size=3, dim=1)"),
        ("aten.split_with_sizes.default(x, [3, 3, 1], 1)", "aten.split.Tensor(self=x, split_size=3, dim=1)"),
        ("aten.split.sizes(x, [1, 6], 1)", "aten.split_with_sizes.default(self=x, split_sizes=[1, 6], dim=1)"),
        (
            "aten.split_with_sizes.default(x, [7, 0], 1)",
            "aten.split_with_sizes.default(self=x, split_sizes=[7, 0], dim=1)",
        ),
    ],
)
def test_parts_are_split_by_their_size(call: str, after: str) -> None:
    """Chunks and lists of equal sizes, the last of which may be smaller, are splits."""
    size = 7 if "split" in call or "3, 1" in call else 8
    ir = small(f"x: float32[2, {size}]", made=call, last="aten.neg.default(made_0)")
    found = optimized(ir, ["canonicalize"], exact=True)
    assert text(found).splitlines()[1].partition(" = ")[2] == after


def test_sizes_that_are_open_keep_their_chunks() -> None:
    """The chunk size of a dynamic size is unknown before the run; dimensions are normalised nevertheless."""

    def forward(self: nn.Module, x: Tensor) -> Tensor:
        return x.chunk(2, -1)[0].exp() - 1

    ir = captured(
        module(forward), torch.randn(2, 6), dynamic_shapes={"x": {1: 2 * torch.export.Dim("n", min=2, max=32)}}
    )
    after = optimized(ir, ["canonicalize"], exact=True)
    assert [node.op_type for node in after.nodes] == ["aten.chunk.default", "aten.exp.default", "aten.add.Tensor"]
    assert after.nodes[0]["dim"] == 1


def test_parts_of_open_sizes_stay() -> None:
    """A size that is known only in the run is equal to no other."""

    def forward(self: nn.Module, x: Tensor) -> Tensor:
        return torch.split_with_sizes(x, [2, x.shape[1] - 2], 1)[1].exp()

    ir = captured(module(forward), torch.randn(2, 6), dynamic_shapes={"x": {1: torch.export.Dim("n", min=4, max=32)}})
    after = optimized(ir, ["canonicalize"], exact=True)
    assert [node.op_type for node in after.nodes] == ["aten.split_with_sizes.default", "aten.exp.default"]


def test_a_result_keeps_the_layout_that_it_had() -> None:
    """Operands are not exchanged if the strides of the result would change."""
    ir = small(
        "x: float32[4, 6], y: float32[6, 4]",
        turned="aten.t.default(y)",
        sin="aten.sin.default(x)",
        cos="aten.cos.default(turned)",
        add="aten.add.Tensor(cos, sin)",
    )
    assert ir.nodes[-1].output.stride == (1, 4)
    assert optimized(ir, ["canonicalize"], exact=True).nodes[-1].output.stride == (1, 4)


SPECIAL = [0.0, -0.0, float("inf"), -float("inf"), float("nan"), 1e-45, -1e-45, 3e38, 65504.0, 2.0, -3.0, 0.1]
BY_DIMENSION = ("softmax", "unsqueeze", "stack", "sum", "amax", "mean")
ELEMENTWISE = [
    call for call in SPELLINGS if "w" not in call.partition("(")[2] and not any(n in call for n in BY_DIMENSION)
]


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
def test_every_bit_is_the_same_for_every_dtype(dtype: str) -> None:
    """Zeros of both signs, infinities, NaN, the smallest and the largest numbers are unchanged."""
    generator = torch.Generator().manual_seed(0)
    drawn = torch.randn(2, 500, generator=generator) * torch.randn(2, 500, generator=generator).mul(5).exp()
    edges = torch.tensor(SPECIAL)
    x = torch.cat([drawn[0], edges.repeat(len(SPECIAL))]).to(TORCH_DTYPES[dtype])
    y = torch.cat([drawn[1], edges.repeat_interleave(len(SPECIAL))]).to(TORCH_DTYPES[dtype])
    for call in ELEMENTWISE:
        before = small(f"x: {dtype}[644], y: {dtype}[644]", made=call)
        after, _ = optimize(before, passes=["canonicalize"])
        (one,), (other,) = (IRExecutor(ir, {}).execute((x, y)) for ir in (before, after))
        same = (one == other) & (one.signbit() == other.signbit()) | one.isnan() & other.isnan()
        assert bool(same.all()), f"{call} in {dtype}: {x[~same]}, {y[~same]} give {one[~same]} / {other[~same]}"


def test_roots_of_float16_are_left_as_powers() -> None:
    """torch rounds the two differently there, and the report contains it."""
    ir = small("x: float16[3]", made="aten.pow.Tensor_Scalar(x, 0.5)")
    after, report = proved(ir, ["canonicalize"], exact=True)
    assert text(after) == text(ir)
    assert [decline.why for decline in report.declined] == ["torch rounds roots and powers of float16 differently"]
