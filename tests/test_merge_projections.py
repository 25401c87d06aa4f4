"""Linear layers of one module that read the same tensor are merged."""

import pytest
import torch
from torch.export import Dim

from tests.rewriting import lines, optimized, proved, small, text
from torch_ir import IR, extract_ir
from torch_ir.analysis.values.prologue import split_prologue
from torch_ir.passes.weights.linear import linear
from torch_ir.passes.weights.merge_projections import merge_projections

_WEIGHTS = "wq: float32[4, 8], wk: float32[6, 8], b: float32[4], c: float32[6], low: bfloat16[4, 8]"


def _every(ir: IR) -> list[str]:
    """The operators that run every time."""
    return [node.op_type.split(".")[1] for node in split_prologue(ir)[1]]


def test_layers_merged_before_are_split_once() -> None:
    """A layer that joins them later, as a query once its scale is in its weights, needs no split of a part."""
    ir = small(
        "x: float32[2, 8]",
        ["relu", "exp", "neg"],
        weights="wq: float32[4, 8], wkv: float32[10, 8]",
        q="aten.linear.default(x, wq)",
        relu="aten.relu.default(q)",
        kv="aten.linear.default(x, wkv)",
        split="aten.split_with_sizes.default(kv, [4, 6], -1)",
        exp="aten.exp.default(split_0)",
        neg="aten.neg.default(split_1)",
    )
    after, _ = proved(ir, [merge_projections])
    splits = [node for node in after.nodes if "split" in node.op_type]
    assert [node["split_sizes"] for node in splits] == [[4, 4, 6]]
    assert _every(after) == ["linear", "split_with_sizes", "relu", "exp", "neg"]


def test_a_part_that_the_caller_receives_keeps_its_split() -> None:
    ir = small(
        "x: float32[2, 8]",
        ["relu", "exp", "split_1"],
        weights="wq: float32[4, 8], wkv: float32[10, 8]",
        q="aten.linear.default(x, wq)",
        relu="aten.relu.default(q)",
        kv="aten.linear.default(x, wkv)",
        split="aten.split_with_sizes.default(kv, [4, 6], -1)",
        exp="aten.exp.default(split_0)",
    )
    after, _ = proved(ir, [merge_projections])
    assert [4, 4, 6] not in [node.attrs.get("split_sizes") for node in after.nodes]


def test_two_layers_become_one() -> None:
    """The weights are joined once; the results are parts of one tensor."""
    ir = small(
        "x: float32[2, 8]",
        ["relu", "exp"],
        weights="wq: float32[4, 8], wk: float32[6, 8]",
        q="aten.linear.default(x, wq)",
        relu="aten.relu.default(q)",
        k="aten.linear.default(x, wk)",
        exp="aten.exp.default(k)",
    )
    after, report = proved(ir, [merge_projections])
    assert text(after) == lines("""
        graph(x: float32[2, 8]) {
          param wq: float32[4, 8] = "wq"
          param wk: float32[6, 8] = "wk"
          cat: float32[10, 8] = aten.cat.default(tensors.0=wq, tensors.1=wk, dim=0)
          linear: float32[2, 10] = aten.linear.default(input=x, weight=cat, bias=None)
          split_with_sizes_0: float32[2, 4] strides [10, 1], split_with_sizes_1: float32[2, 6] strides [10, 1] = \
aten.split_with_sizes.default(self=linear, split_sizes=[4, 6], dim=-1)
          relu: float32[2, 4] = aten.relu.default(self=split_with_sizes_0)
          exp: float32[2, 6] = aten.exp.default(self=split_with_sizes_1)
          return relu, exp
        }
    """)
    assert [change.node for change in report.changes] == ["q", "k"]
    assert report.after.flops == report.before.flops
    assert report.after.bytes < report.before.bytes


def test_a_missing_bias_is_zero() -> None:
    """One of two layers has a bias."""
    ir = small(
        "x: float32[2, 8]",
        ["relu", "exp"],
        weights=_WEIGHTS,
        q="aten.linear.default(x, wq)",
        k="aten.linear.default(x, wk, c)",
        relu="aten.relu.default(q)",
        exp="aten.exp.default(k)",
    )
    after = optimized(ir, [merge_projections])
    assert _every(after) == ["linear", "split_with_sizes", "relu", "exp"]
    assert [node.op_type for node in after.nodes][:3] == [
        "aten.cat.default", "aten.new_zeros.default", "aten.cat.default",
    ]  # fmt: skip


def test_weights_that_are_made_later_are_made_earlier() -> None:
    """The weight of the second layer is computed after the first layer is read."""
    ir = small(
        "x: float32[2, 8]",
        weights="wq: float32[4, 8], wk: float32[8, 4], s: float32[4, 1]",
        q="aten.linear.default(x, wq)",
        relu="aten.relu.default(q)",
        t="aten.t.default(wk)",
        scaled="aten.mul.Tensor(t, s)",
        k="aten.linear.default(x, scaled)",
        add="aten.add.Tensor(relu, k)",
    )
    assert _every(optimized(ir, [merge_projections])) == ["linear", "split_with_sizes", "relu", "add"]


class _Attention(torch.nn.Module):
    """Attention with fewer heads for keys and values, and a gated layer behind it."""

    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        sizes = {"q": 16, "k": 8, "v": 8, "gate": 24, "up": 24}
        for name, size in sizes.items():
            self.add_module(name, torch.nn.Linear(16, size, bias=name == "q", dtype=dtype))
        self.down = torch.nn.Linear(24, 16, dtype=dtype)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (part(x).view(*x.shape[:2], -1, 4).transpose(1, 2) for part in (self.q, self.k, self.v))
        seen = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        x = x + seen.transpose(1, 2).reshape(x.shape)
        return self.down(torch.nn.functional.silu(self.gate(x)) * self.up(x))  # type: ignore[no-any-return]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("is_open", [False, True])
def test_attention_and_gate(dtype: torch.dtype, is_open: bool) -> None:
    """Three projections become one, gate and up another one; views of the parts are still views."""
    shapes = ({0: Dim("batch"), 1: Dim("length", min=2)},) if is_open else None
    x = torch.empty(2, 5, 16, device="meta", dtype=dtype)
    ir = extract_ir(_Attention(dtype).to("meta").eval(), (x,), dynamic_shapes=shapes)
    after = optimized(ir, [merge_projections])
    assert _every(after).count("linear") == 3
    assert _every(after).count("split_with_sizes") == 2


def test_tied_weights() -> None:
    """Two layers may have the same weight and different biases."""
    ir = small(
        "x: float32[2, 8]",
        weights="w: float32[4, 8], b: float32[4], c: float32[4]",
        q="aten.linear.default(x, w, b)",
        k="aten.linear.default(x, w, c)",
        mul="aten.mul.Tensor(q, k)",
    )
    assert _every(optimized(ir, [merge_projections])) == ["linear", "split_with_sizes", "mul"]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("aten.linear.default(x, wq)", "aten.linear.default(y, wq)"),  # other inputs
        ("aten.linear.default(x, wq)", "aten.linear.default(x, given)"),  # no weight
        ("aten.linear.default(x, wq)", "aten.linear.default(x, wq, vector)"),
        ("aten.linear.default(x, wq)", "aten.mm.default(x, turned)"),  # no linear layer
    ],
)
def test_stays(one: str, other: str) -> None:
    """Layers that have nothing to share."""
    ir = small(
        "x: float32[2, 8], y: float32[2, 8], given: float32[4, 8], vector: float32[4]",
        weights=f"{_WEIGHTS}, turned: float32[8, 4]",
        q=one,
        k=other,
        mul="aten.mul.Tensor(q, k)",
    )
    assert text(optimized(ir, [merge_projections])) == text(ir)


def test_weights_that_are_inputs() -> None:
    """Joining them would be work in every run."""
    ir = small(
        "x: float32[2, 8], given: float32[4, 8]",
        weights=_WEIGHTS,
        q="aten.linear.default(x, given)",
        k="aten.linear.default(x, wq)",
        v="aten.linear.default(x, wq, b)",
        mul="aten.mul.Tensor(q, k)",
        add="aten.add.Tensor(mul, v)",
    )
    after, report = proved(ir, [merge_projections])
    assert _every(after) == ["linear", "split_with_sizes", "linear", "mul", "add"]
    assert [decline.why for decline in report.declined] == ["'given' is not a constant weight"]


def test_layers_of_different_modules_stay_apart() -> None:
    """Their results are needed at different times, and would stay in memory."""

    class Block(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.key, self.value = torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)

        def forward(self, x: torch.Tensor, memory: torch.Tensor) -> torch.Tensor:
            return x * torch.sigmoid(self.key(memory)) + self.value(memory).relu()

    class Decoder(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.blocks = torch.nn.ModuleList([Block(), Block()])

        def forward(self, x: torch.Tensor, memory: torch.Tensor) -> torch.Tensor:
            for block in self.blocks:
                x = block(x, memory)
            return x

    rows = torch.empty(2, 8, device="meta")
    after = optimized(extract_ir(Decoder().to("meta").eval(), (rows, rows)), [merge_projections])
    assert _every(after).count("linear") == 2


@pytest.mark.parametrize("reader", ["aten.view.default(k, [2, 6])", "aten.transpose.int(k, 0, 1)"])
def test_what_the_caller_holds_stays_its_own(reader: str) -> None:
    """A result would be a part of a larger tensor; the other two are merged."""
    ir = small(
        "x: float32[2, 8]",
        ["both", "held"],
        weights=_WEIGHTS,
        q="aten.linear.default(x, wq)",
        k="aten.linear.default(x, wk)",
        v="aten.linear.default(x, wq, b)",
        held=reader,
        both="aten.mul.Tensor(q, v)",
    )
    after, report = proved(ir, [merge_projections])
    assert [decline.why for decline in report.declined] == ["the caller would receive a view of a larger tensor"]
    assert _every(after).count("linear") == 2


@pytest.mark.parametrize(
    ("reader", "why"),
    [
        ("aten.view.default(k, [12])", "aten.view.default refuses its arguments: "),
        ("aten.reshape.default(k, [12])", "'read' would have to copy it"),
        ("aten.contiguous.default(k)", "'read' would have to copy it"),
    ],
)
def test_a_reader_that_needs_elements_side_by_side(reader: str, why: str) -> None:
    """Slices are strided; a consumer that cannot read them, or would copy them, keeps its own layer."""
    ir = small(
        "x: float32[2, 8]",
        ["relu", "exp"],
        weights=_WEIGHTS,
        q="aten.linear.default(x, wq)",
        k="aten.linear.default(x, wk)",
        read=reader,
        relu="aten.relu.default(read)",
        exp="aten.exp.default(q)",
    )
    after, report = proved(ir, [merge_projections])
    assert text(after) == text(ir)
    (decline,) = report.declined
    assert decline.node == "k"
    assert decline.why.startswith(why)


def test_products_are_merged_once_they_are_linear_layers() -> None:
    """Products with transposed weights."""
    ir = small(
        "x: float32[2, 3, 8]",
        weights="w: float32[8, 4], v: float32[8, 4]",
        q="aten.matmul.default(x, w)",
        k="aten.matmul.default(x, v)",
        mul="aten.mul.Tensor(q, k)",
    )
    assert _every(optimized(ir, [linear, merge_projections])) == ["linear", "split_with_sizes", "mul"]
