"""Products with a weight become linear layers, and two consecutive ones are merged if that is less work."""

import pytest
import torch
from torch.export import Dim

from tests.rewriting import lines, optimized, proved, small, text
from torch_ir import IR, extract_ir
from torch_ir.analysis.values.prologue import split_prologue
from torch_ir.passes.weights.linear import linear


def _every(ir: IR) -> list[str]:
    """The operators that run every time."""
    return [node.op_type.split(".")[1] for node in split_prologue(ir)[1]]


def test_a_product_with_a_transposed_weight() -> None:
    """matmul(x, w.T) is linear(x, w)."""
    ir = small(
        "x: float32[2, 3, 4]",
        weights="w: float32[5, 4]",
        t="aten.t.default(w)",
        matmul="aten.matmul.default(x, t)",
    )
    assert text(optimized(ir, [linear])) == lines("""
        graph(x: float32[2, 3, 4]) {
          param w: float32[5, 4] = "w"
          linear: float32[2, 3, 5] = aten.linear.default(input=x, weight=w, bias=None)
          return linear
        }
    """)


def test_rows_that_are_laid_flat_and_back() -> None:
    """view(addmm(b, view(x), w)) is one layer over x, with the weight transposed once."""
    ir = small(
        "x: float32[2, 3, 4]",
        weights="w: float32[4, 5], b: float32[5]",
        rows="aten.view.default(x, [-1, 4])",
        addmm="aten.addmm.default(b, rows, w)",
        back="aten.view.default(addmm, [2, 3, 5])",
    )
    assert text(optimized(ir, [linear])) == lines("""
        graph(x: float32[2, 3, 4]) {
          param w: float32[4, 5] = "w"
          param b: float32[5] = "b"
          permute: float32[5, 4] strides [1, 5] = aten.permute.default(self=w, dims=[1, 0])
          linear_1: float32[2, 3, 5] = aten.linear.default(input=x, weight=permute, bias=b)
          return linear_1
        }
    """)


@pytest.mark.parametrize(
    "calls",
    [
        {"mm": "aten.mm.default(x, w)"},
        {"turned": "aten.permute.default(v, [1, 0])", "mm": "aten.mm.default(x, turned)"},
        {"turned": "aten.transpose.int(v, -1, 0)", "mm": "aten.matmul.default(x, turned)"},
        {"mm": "aten.matmul.default(vector, w)"},
        {"addmm": "aten.addmm.default(b, x, w)"},
        {"addmm": "aten.addmm.default(one, x, w)"},
        {"addmm": "aten.addmm.default(row, x, w)"},
        {"addmm": "aten.addmm.default(given, x, w)"},
    ],
)
def test_every_spelling(calls: dict[str, str]) -> None:
    """A weight as right operand, transposed or not, and a bias that can be a vector."""
    ir = small(
        "x: float32[3, 4], vector: float32[4], given: float32[5]",
        weights="w: float32[4, 5], v: float32[5, 4], b: float32[5], one: float32[], row: float32[1, 5]",
        **calls,
    )
    assert _every(optimized(ir, [linear])) == ["linear"]


@pytest.mark.parametrize(
    "call",
    [
        "aten.mm.default(x, given)",  # no weight
        "aten.addmm.default(full, x, w)",  # a bias for every row
        "aten.addmm.default(b, x, w, beta=2)",
        "aten.matmul.default(x, stack)",  # several matrices
        "aten.mm.default(whole, steps)",  # whole numbers
        "aten.mm.default(once, w)",  # computed once anyway
    ],
)
def test_stays(call: str) -> None:
    """Products that are not linear layers."""
    ir = small(
        "x: float32[3, 4], given: float32[4, 5], whole: int64[3, 4]",
        weights=(
            "w: float32[4, 5], b: float32[5], full: float32[3, 5], stack: float32[2, 4, 5], steps: int64[4, 5], "
            "once: float32[2, 4]"
        ),
        made=call,
        other="aten.neg.default(made)",
    )
    assert text(optimized(ir, [linear])) == text(ir)


@pytest.mark.parametrize("rows", ["aten.flatten.using_ints(y, 0, 1)", "aten.reshape.default(x, [6, 4])"])
def test_rows_from_elsewhere(rows: str) -> None:
    """A reshape to rows and back to another shape becomes one reshape."""
    ir = small(
        "x: float32[2, 3, 2, 2], y: float32[3, 2, 4]",
        weights="w: float32[5, 4]",
        rows=rows,
        made="aten.linear.default(rows, w)",
        back="aten.reshape.default(made, [2, 3, 5])",
    )
    assert _every(optimized(ir, [linear])) == ["reshape", "linear"]


@pytest.mark.parametrize(
    ("back", "returns"),
    [
        ("[2, 15]", ["back"]),  # other rows
        ("[2, 3, 5]", ["made", "back"]),  # the rows are wanted too
        ("[3, 2, 5]", ["rows", "back"]),  # would be reshaped once more
    ],
)
def test_other_rows_stay(back: str, returns: list[str]) -> None:
    """Rows that are read in between, or laid in another way afterwards."""
    ir = small(
        "x: float32[2, 3, 4]",
        returns,
        weights="w: float32[5, 4]",
        rows="aten.reshape.default(x, [-1, 4])",
        made="aten.linear.default(rows, w)",
        back=f"aten.reshape.default(made, {back})",
    )
    assert text(optimized(ir, [linear])) == text(ir)


def test_two_in_a_row() -> None:
    """linear(linear(x, w, b), v, c) is linear(x, v @ w, v @ b + c)."""
    ir = small(
        "x: float32[2, 4]",
        weights="w: float32[8, 4], b: float32[8], v: float32[3, 8], c: float32[3]",
        one="aten.linear.default(x, w, b)",
        two="aten.linear.default(one, v, c)",
    )
    assert text(optimized(ir, [linear])) == lines("""
        graph(x: float32[2, 4]) {
          param w: float32[8, 4] = "w"
          param b: float32[8] = "b"
          param v: float32[3, 8] = "v"
          param c: float32[3] = "c"
          mv: float32[3] = aten.mv.default(self=v, vec=b)
          add: float32[3] = aten.add.Tensor(self=mv, other=c, alpha=1)
          mm: float32[3, 4] = aten.mm.default(self=v, mat2=w)
          linear: float32[2, 3] = aten.linear.default(input=x, weight=mm, bias=add)
          return linear
        }
    """)


@pytest.mark.parametrize("dtype", ["float64", "bfloat16"])
@pytest.mark.parametrize("biases", [("None", "None"), ("b", "None"), ("None", "c")])
def test_two_in_a_row_in_other_dtypes(dtype: str, biases: tuple[str, str]) -> None:
    """Weights of few bits are multiplied in float32 and rounded once."""
    ir = small(
        f"x: {dtype}[2, 3, 4]",
        weights=f"w: {dtype}[8, 4], b: {dtype}[8], v: {dtype}[3, 8], c: {dtype}[3]",
        one=f"aten.linear.default(x, w, {biases[0]})",
        two=f"aten.linear.default(one, v, {biases[1]})",
    )
    after = optimized(ir, [linear])
    assert _every(after) == ["linear"]
    (product,) = [node for node in after.nodes if node.op_type == "aten.mm.default"]
    assert product.outputs[0].dtype == ("float64" if dtype == "float64" else "float32")


@pytest.mark.parametrize(
    ("calls", "returns", "why"),
    [
        (
            {"one": "aten.linear.default(x, narrow)", "two": "aten.linear.default(one, v)"},
            "",
            "one layer from 8 to 8 is more work than two through 2",
        ),
        (
            {"one": "aten.linear.default(x, w)", "two": "aten.linear.default(one, w)"},
            ["one", "two"],
            "'one' is read elsewhere too",
        ),
        (
            {"one": "aten.linear.default(x, given)", "two": "aten.linear.default(one, w)"},
            "",
            "'given' is not a constant weight",
        ),
    ],
)
def test_two_that_stay_two(calls: dict[str, str], returns: str | list[str], why: str) -> None:
    """A bottleneck is less work; a value with other consumers, or that is not a weight, is not merged."""
    ir = small(
        "x: float32[2, 8], given: float32[8, 8]",
        returns,
        weights="w: float32[8, 8], narrow: float32[2, 8], v: float32[8, 2]",
        **calls,
    )
    after, report = proved(ir, [linear])
    assert text(after) == text(ir)
    assert [decline.why for decline in report.declined] == [why]


class _Rows(torch.nn.Module):
    """A layer that keeps its weight the other way round, as GPT-2 does."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.bias = torch.nn.Parameter(torch.empty(4, 6)), torch.nn.Parameter(torch.empty(6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        size = (*x.shape[:-1], 6)
        return torch.addmm(self.bias, x.view(-1, x.size(-1)), self.weight).view(size)


def test_open_sizes() -> None:
    """Batch and length may be open."""
    shapes = ({0: Dim("batch"), 1: Dim("length")},)
    ir = extract_ir(_Rows().to("meta").eval(), (torch.empty(2, 3, 4, device="meta"),), dynamic_shapes=shapes)
    assert _every(optimized(ir, [linear])) == ["linear"]
