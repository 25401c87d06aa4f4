"""Constants: values known without weights are computed once and shared, but never if the caller could see it."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.rewriting import lines, optimized, proved, small, text
from torch_ir import IR, extract_ir, meta_init
from torch_ir.analysis.values.constants import Constants
from torch_ir.ir import Device, OpNode, Param, TensorData, TensorMeta
from torch_ir.ir.regroup.functions import outline
from torch_ir.ops.tensor_data import from_tensor, to_tensor
from torch_ir.passes import find_pass, optimize
from torch_ir.passes.random_check import prove

FOLD = ["fold-constants"]


def _with(ir: IR, **values: Tensor) -> IR:
    """Return the graph with weights as constants with these values."""
    for param in ir.params:
        if param.name in values:
            param.param = Param((param.name,), "constant", from_tensor(values[param.name]))
    return ir.check()


def test_what_nothing_decides_is_computed_now() -> None:
    """A chain that begins with arange becomes one constant, with the values that it had."""
    ir = small(
        "x: int64[1, 4]",
        arange="aten.arange.default(4)",
        add="aten.add.Tensor(arange, 2)",
        row="aten.unsqueeze.default(add, 0)",
        sum="aten.add.Tensor(x, row)",
    )
    after = optimized(ir, FOLD, exact=True)
    assert text(after) == lines("""
        graph(x: int64[1, 4]) {
          constant c_row: int64[1, 4] = "KEY" values [2, 3, 4, 5]
          sum: int64[1, 4] = aten.add.Tensor(self=x, other=c_row, alpha=1)
          return sum
        }
    """).replace("KEY", after.params[0].key or "")
    assert (after.params[0].key or "").startswith("folded.")
    data = after.params[0].param.data if after.params[0].param else None
    assert data is not None
    assert to_tensor(data).tolist() == [[2, 3, 4, 5]]


def test_a_value_that_is_half_way_there_is_kept_where_it_is_read() -> None:
    """Both the start and the end of a chain become constants where both have other readers."""
    ir = small(
        "x: float32[4]",
        ["sum", "product"],
        ones="aten.ones.default([4])",
        exp="aten.exp.default(ones)",
        sum="aten.add.Tensor(x, ones)",
        product="aten.mul.Tensor(x, exp)",
    )
    after = optimized(ir, FOLD, exact=True)
    assert [param.name for param in after.params] == ["c_ones", "c_exp"]
    assert [node.name for node in after.nodes] == ["sum", "product"]


def test_constants_of_the_graph_are_known() -> None:
    """Constants and non-persistent buffers count, weights and persistent buffers do not."""
    ir = small(
        "x: float32[3]",
        ["one", "other"],
        weights="c: float32[3], w: float32[3]",
        neg="aten.neg.default(c)",
        minus="aten.neg.default(w)",
        one="aten.add.Tensor(x, neg)",
        other="aten.add.Tensor(x, minus)",
    )
    after = optimized(_with(ir, c=torch.tensor([1.0, -0.0, float("inf")])), [*FOLD, "dead-code"], exact=True)
    assert [node.name for node in after.nodes] == ["minus", "one", "other"]
    assert [param.name for param in after.params] == ["w", "c_neg"]


def test_equal_constants_are_one() -> None:
    """Readers of equal values read the first; a zero of the other sign, or another dtype, is another value."""
    ir = small(
        "x: float32[2]",
        weights="a: float32[2], b: float32[2], c: float32[2]",
        one="aten.add.Tensor(x, a)",
        two="aten.add.Tensor(one, b)",
        three="aten.add.Tensor(two, c)",
    )
    zero = torch.zeros(2)
    after, report = proved(_with(ir, a=zero, b=zero.clone(), c=-zero), [*FOLD, "dead-code"], exact=True)
    assert [param.name for param in after.params] == ["a", "c"]
    assert [change.rule for change in report.changes] == ["share-constants"]


def test_a_fill_is_known_whatever_its_tensor_holds() -> None:
    """zeros_like(x) depends on the shape of x alone."""
    ir = small("x: float32[2, 3]", zeros="aten.ones_like.default(x)", sum="aten.add.Tensor(x, zeros)")
    after = optimized(ir, FOLD, exact=True)
    assert [param.name for param in after.params] == ["c_zeros"]


def test_strides_are_kept() -> None:
    """A constant has the strides of the tensor that it replaces."""
    ir = small(
        "x: float32[3, 2]",
        arange="aten.arange.default(6, dtype=None)",
        rows="aten.view.default(arange, [2, 3])",
        turned="aten.transpose.int(rows, 0, 1)",
        mask="aten.expand.default(turned, [3, 2])",
        sum="aten.add.Tensor(x, mask)",
    )
    after = optimized(ir, FOLD, exact=True)
    assert after.params[0].stride == (1, 3)


LARGE = "its value takes {} bytes, more than the limit of 64; it is computed once, when weights are bound"


def test_large_values_stay_nodes() -> None:
    """Above the limit a node stays, with small constants before it; a smaller result after it is folded."""
    ir = small(
        "x: float32[10, 10]",
        arange="aten.arange.default(10, dtype=None)",
        column="aten.view.default(arange, [10, 1])",
        mask="aten.mul.Tensor(column, 0.5)",
        wide="aten.expand.default(mask, [10, 10])",
        grid="aten.clone.default(wide)",
        sum="aten.add.Tensor(x, grid)",
    )
    after, report = optimize(ir, passes=["fold-constants:limit=64", "dead-code"])
    assert [node.name for node in after.nodes] == ["wide", "grid", "sum"]
    assert {decline.why for decline in report.declined} == {LARGE.format(80), LARGE.format(400)}
    assert prove(ir, after).max_diff == 0.0


def test_what_takes_no_more_than_it_replaces_is_folded() -> None:
    """A large constant that one node turns is turned now."""
    ir = small(
        "x: float32[64, 512]",
        weights="c: float32[512, 64]",
        turned="aten.t.default(c)",
        sum="aten.add.Tensor(x, turned)",
    )
    after = optimized(_with(ir, c=torch.randn(512, 64)), [*FOLD, "dead-code"], exact=True)
    assert [param.name for param in after.params] == ["c_turned"]


@pytest.mark.parametrize(
    "call", ["aten.rand.default([3])", "aten.empty.memory_format([3])", "aten.zeros.default([3], device='cuda')"]
)
def test_what_varies_stays(call: str) -> None:
    """Random numbers, memory as it was, and other devices are left to the run."""
    ir = small("x: float32[3]", made=call.replace(", device='cuda'", ""), sum="aten.add.Tensor(x, made)")
    if "cuda" in call:
        ir.nodes[0].attrs["device"] = Device("cuda")
    copy = ir.clone()
    assert find_pass("fold-constants")(copy) == 0
    assert text(copy) == text(ir)


def test_the_caller_does_not_hold_a_constant() -> None:
    """A result is created in every run, so the caller may write to it."""
    ir = small("x: float32[3]", ["view", "neg"], ones="aten.ones.default([3])", view="aten.view.default(ones, [3, 1])",
               neg="aten.neg.default(x)")  # fmt: skip
    after, report = proved(ir, FOLD, exact=True)
    assert [node.name for node in after.nodes] == ["ones", "view", "neg"]
    assert len(report.declined) == 2


def test_a_tensor_that_is_changed_is_no_constant() -> None:
    """A buffer with a mutation has another value in the next run."""
    ir = small("x: float32[3]", weights="c: float32[3]", exp="aten.exp.default(c)", sum="aten.add.Tensor(x, exp)")
    _with(ir, c=torch.zeros(3))
    ir.mutations = [(ir.params[0], ir.nodes[-1].output)]
    copy = ir.clone()
    assert find_pass("fold-constants")(copy) == 0
    assert Constants(copy).scalar_of(copy.params[0]) is None


def test_open_sizes_stay_open() -> None:
    """Nodes that depend on a size are not folded."""

    class Model(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x + torch.arange(x.shape[1]) + torch.arange(4).sum()

    ir = extract_ir(
        Model().eval(),
        (torch.empty(2, 5, device="meta"),),
        dynamic_shapes={"x": {1: torch.export.Dim("n", min=2, max=9)}},
    )
    after, _ = optimize(ir, passes=FOLD)
    assert [node.op_type for node in after.nodes].count("aten.arange.default") == 1
    assert prove(ir, after).max_diff == 0.0


def test_functions_have_no_constants() -> None:
    """Inside a function, nodes stay as they are, so that it can still be put inline."""
    ir = small(
        "x: float32[3]", ones="aten.ones.default([3])", sum="aten.add.Tensor(x, ones)", neg="aten.neg.default(sum)"
    )
    outline(ir, ir.nodes[:2], "block")
    after = optimized(ir, FOLD)
    assert not after.functions["block"].params
    assert len(after.functions["block"].nodes) == 2


class _Causal(nn.Module):
    """Attention with a mask computed in forward, and a table in a non-persistent buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)
        self.register_buffer("table", torch.arange(12.0).view(6, 2).cos(), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        size = x.shape[1]
        mask = torch.ones(size, size, dtype=torch.bool).tril()
        scores = self.layer(x) @ x.mT
        scores = scores.masked_fill(~mask, float("-inf")).softmax(-1)
        return scores @ x * self.table[:size].sum(-1).view(1, -1, 1)


def _extracted(model: nn.Module, **options: Any) -> IR:
    return extract_ir(model.eval(), (torch.empty(2, 5, 8, device="meta" if not options else "cpu"),), **options)


def test_a_model_without_weights_is_folded_like_one_with_weights() -> None:
    """The graph, constants included, is the same text."""
    with meta_init():
        weightless = _extracted(_Causal())
    weighted = _extracted(_Causal(), strict=False)
    one, other = (optimize(ir, passes=[*FOLD, "dead-code"])[0] for ir in (weightless, weighted))
    assert text(one) == text(other)
    assert {param.key: param.param.data for param in one.params if param.param} == {
        param.key: param.param.data for param in other.params if param.param
    }
    assert len(one.nodes) < len(weightless.nodes)
    assert prove(weightless, one).max_diff == 0.0


def test_a_folded_graph_is_proved_in_a_wider_dtype() -> None:
    """Constants were rounded to their own dtype, so the graph that they are compared with has them rounded too."""
    with meta_init():
        ir = _extracted(_Causal())
    after, _ = optimize(ir, passes=FOLD)
    assert prove(ir, after, "float64").max_diff == 0.0


def test_folding_twice_changes_nothing() -> None:
    """A folded graph has nothing left to fold, also after saving."""
    with meta_init():
        ir = _extracted(_Causal())
    once, _ = optimize(ir, passes=FOLD)
    again, report = optimize(IR.from_json(once.to_json()), passes=FOLD)
    assert text(again) == text(once)
    assert not report.changes


def _known(ir: IR, name: str) -> Any:
    made = next(tensor for tensor in ir.tensors() if tensor.name == name)
    return Constants(ir).scalar_of(made)


SCALARS = {
    "aten.full.default([1000, 1000, 1000], 2.5)": 2.5,
    "aten.full.default([2], 2.5, dtype=torch.int64)": 2,
    "aten.scalar_tensor.default(3)": 3.0,
    "aten.ones_like.default(x)": 1.0,
    "aten.zeros.default([2, 3])": 0.0,
    "aten.new_full.default(x, [4], 0.1)": torch.tensor(0.1).item(),
    "aten.arange.default(3)": None,
    "aten.arange.default(1)": 0,
    "aten.full.default([2], float('nan'))": None,
    "aten.zeros.default([0])": None,
    "aten.exp.default(x)": None,
}


@pytest.mark.parametrize("call", SCALARS)
def test_one_number_that_fills_a_tensor(call: str) -> None:
    """A tensor with one repeated value is replaced by that number, rounded to its dtype."""
    dtype = ", dtype=torch.int64" in call
    ir = small("x: float32[2, 3]", made=call.replace(", dtype=torch.int64", ""), neg="aten.neg.default(x)")
    if dtype:
        ir.nodes[0].output.dtype = "int64"
    found = _known(ir, "made")
    assert (found, type(found)) == (SCALARS[call], type(SCALARS[call]))


def test_a_number_is_seen_through_views_and_arithmetic() -> None:
    """Views have the value of their base, and small tensors are computed."""
    ir = small(
        "x: float32[2]",
        ["x"],
        full="aten.full.default([4096, 4096], -1.5)",
        view="aten.transpose.int(full, 0, 1)",
        part="aten.slice.Tensor(view, 0, 1, 5)",
        two="aten.full.default([2], 2.0)",
        root="aten.sqrt.default(two)",
        mixed="aten.cat.default([two, root])",
    )
    assert (_known(ir, "part"), _known(ir, "root"), _known(ir, "mixed")) == (
        -1.5,
        torch.tensor(2.0).sqrt().item(),
        None,
    )


def test_zeros_of_both_signs_are_not_one_number() -> None:
    """Elements are compared bit for bit."""
    tensor = TensorMeta("c", (2,), "float32", param=Param(("c",), "constant", TensorData.of(torch.tensor([0.0, -0.0]))))
    ir = IR([], [], [tensor], params=[tensor])
    assert Constants(ir).scalar_of(tensor) is None


def test_the_prologue_goes_to_the_front() -> None:
    """Nodes that depend only on weights come first, in their order; nothing else changes."""
    ir = small(
        "x: float32[2]",
        weights="w: float32[2]",
        relu="aten.relu.default(x)",
        scale="aten.exp.default(w)",
        mul="aten.mul.Tensor(relu, scale)",
        shift="aten.neg.default(scale)",
        add="aten.add.Tensor(mul, shift)",
    )
    after, report = proved(ir, ["hoist-prologue"], exact=True)
    assert text(after) == lines("""
        graph(x: float32[2]) {
          param w: float32[2] = "w"
          scale: float32[2] = aten.exp.default(self=w)
          shift: float32[2] = aten.neg.default(self=scale)
          relu: float32[2] = aten.relu.default(self=x)
          mul: float32[2] = aten.mul.Tensor(self=relu, other=scale)
          add: float32[2] = aten.add.Tensor(self=mul, other=shift, alpha=1)
          return add
        }
    """)
    assert [change.node for change in report.changes] == ["scale", "shift"]


def test_a_prologue_that_is_in_front_stays() -> None:
    """Nothing is counted where nothing moves."""
    ir = small("x: float32[2]", weights="w: float32[2]", scale="aten.exp.default(w)", mul="aten.mul.Tensor(x, scale)")
    assert find_pass("hoist-prologue")(ir) == 0


@pytest.mark.parametrize("dtype", ["qint32", "quint8", "bits8", "uint4"])
def test_constants_whose_elements_are_not_numbers_stay(dtype: str) -> None:
    """A file may hold them, and optimising it ends without an error."""
    x, constant, made = TensorMeta("x", (2,), dtype), TensorMeta("c", (), dtype), TensorMeta("mul", (2,), dtype)
    constant.param = Param(("c",), "constant", TensorData((), dtype, bytes(4 if dtype == "qint32" else 1)))
    ir = IR([OpNode("mul", "aten.mul.Tensor", [x, constant], [made])], [x], [made], [constant])
    assert [node.name for node in optimize(ir, "full")[0].nodes] == ["mul"]
