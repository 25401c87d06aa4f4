"""Shape inference on the graph: shapes, dtypes and strides of results, also for dynamic sizes."""

import re
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import nn
from torch.export import Dim

import catalogue
from catalogue import Entry
from tests.proof import captured, captured_entry
from tests.rewriting import small
from torch_ir import optimize
from torch_ir.analysis.memory.aliasing import is_held_by_caller, memory_of, moves_results
from torch_ir.analysis.shapes import inference
from torch_ir.analysis.shapes.inference import Shapes, wrong_shapes
from torch_ir.analysis.shapes.open_sizes import expressed, points_of
from torch_ir.analysis.values.rewrite_context import Knowledge
from torch_ir.errors import ShapeError
from torch_ir.ir import IR, Symbol, TensorMeta


@pytest.mark.filterwarnings("ignore:the values of .* are unknown")
@pytest.mark.parametrize("entry", catalogue.entries(), ids=lambda entry: entry.name)
def test_every_captured_graph_says_what_torch_says(entry: Entry) -> None:
    """Inferred shapes and dtypes of every node of the catalogue equal the captured ones."""
    ir = captured_entry(entry.name)
    assert list(wrong_shapes(ir)) == []


BATCH, SEQ = Dim("batch", min=1, max=64), Dim("seq", min=2, max=128)
SIDES = {2: Dim("height", min=33, max=96), 3: Dim("width", min=33, max=96)}


@pytest.mark.filterwarnings("ignore:the values of .* are unknown")
@pytest.mark.parametrize(
    ("name", "sizes", "varying"),
    [("resnet18", (2, 3, 64, 80), {0: BATCH, **SIDES}), ("gpt", None, {0: BATCH, 1: SEQ}), ("llama", None, {1: SEQ})],
    ids=["resnet18", "gpt", "llama"],
)
def test_open_sizes_are_expressions(name: str, sizes: Sequence[int] | None, varying: dict[int, Dim]) -> None:
    """With dynamic sizes, inferred expressions are correct for all valid sizes, including windows and strides."""
    entry = catalogue.find(name)
    inputs = entry.inputs() if sizes is None else (torch.randn(*sizes),)
    ir = captured(entry.build(), *inputs, dynamic_shapes=(varying,))
    assert ir.symbols
    assert list(wrong_shapes(ir)) == []


def test_a_node_that_lies_is_named() -> None:
    """With the inferred and the declared shape."""
    ir = small("x: float32[2, 3]", t="aten.t.default(x)")
    ir.nodes[0].output.shape = (2, 3)
    ((node, why),) = wrong_shapes(ir)
    assert (node.name, why) == ("t", "makes float32[3, 2], but the graph says float32[2, 3]")


def test_a_search_that_ends_early_leaves_nothing_behind() -> None:
    """A graph that is analysed afterwards is not taken for a function of the first one, whose sizes it cannot read."""
    inner = small("y: float32[2, 3]", t="aten.t.default(y)")
    inner.nodes[0].output.shape = (2, 3)
    x = TensorMeta("x", ("seq", 3), "float32")
    outer = IR([], [x], [x], symbols=[Symbol("seq", 2, 64, x, 0)], functions={"body": inner})
    wrong = wrong_shapes(outer)
    assert next(wrong)[0].name == "t"  # and the search stays where it is
    assert points_of(small("z: float32[2, 3]", t="aten.t.default(z)")) == ()


def test_arguments_that_do_not_go_together_are_refused() -> None:
    """In one sentence, with torch's reason."""
    shapes = Shapes(small("x: float32[2, 3]", t="aten.t.default(x)"))
    x = TensorMeta("x", (2, 3), "float32")
    with pytest.raises(ShapeError, match=r"aten\.mm\.default refuses its arguments: "):
        shapes.results("aten.mm.default", {"self": x, "mat2": x}, {})


def test_what_nobody_can_say_is_none() -> None:
    """The size of `nonzero` depends on the data."""
    shapes = Shapes(small("x: float32[2, 3]", t="aten.t.default(x)"))
    assert shapes.results("aten.nonzero.default", {"self": TensorMeta("x", (2, 3), "float32")}, {}) is None


@pytest.mark.parametrize(
    "wanted", ["seq", "batch*seq", "2*batch", "batch + seq", "(seq - 1) // 2 + 1", "seq // 4", 7, "batch - 1"]
)
def test_expressions_are_found_again(wanted: int | str) -> None:
    """From numbers seen at several sizes; however it is written, it is right at any other size."""
    from torch_ir.ir import evaluate

    x = TensorMeta("x", ("batch", "seq"), "float32")
    ir = IR([], [x], [x], symbols=[Symbol("batch", 1, 64, x, 0), Symbol("seq", 2, 512, x, 1)])
    points = points_of(ir)
    found = expressed([int(evaluate(wanted, point)) for point in points], [2, "batch", "seq"], points)
    assert found is not None
    for sizes in ({"batch": 3, "seq": 17}, {"batch": 41, "seq": 256}):
        assert evaluate(found, sizes) == evaluate(wanted, sizes)


def test_sizes_are_such_as_the_graph_admits() -> None:
    """Ranges and constraints hold at every sample."""
    x = TensorMeta("x", ("batch", "seq"), "float32")
    symbols = [Symbol("batch", 2, 8, x, 0), Symbol("seq", 16, None, x, 1)]
    points = points_of(IR([], [x], [x], symbols=symbols, constraints=["seq % 8 == 0", "batch != 4"]))
    assert len(points) == 5
    for point in points:
        assert 2 <= point["batch"] <= 8 != 4
        assert point["batch"] != 4
        assert point["seq"] >= 16
        assert point["seq"] % 8 == 0


# -- memory ------------------------------------------------------------------------------------------------------------


MASKED = """
graph Masked(x: float32[2, 7], y: float32[batch, 7], language: int64[2]) {
  symbol 2 <= batch <= 64 from y[0]
  symbol 0 <= u0 <= 2 from index[0]
  symbol 0 <= u1 <= 2 from index_1[0]
  eq: bool[2] = aten.eq.Scalar(self=language, other=0)
  index: float32[u0, 7] = aten.index.Tensor(self=x, indices.0=eq)
  zeros_like: float32[2, 7] = aten.zeros_like.default(self=x)
  index_put: float32[2, 7] = aten.index_put.default(self=zeros_like, indices.0=eq, values=index, accumulate=False)
  eq_1: bool[2] = aten.eq.Scalar(self=language, other=0)
  index_1: float32[u1, 7] = aten.index.Tensor(self=index_put, indices.0=eq_1)
  neg: float32[u1, 7] = aten.neg.default(self=index_1)
  index_put_1: float32[2, 7] = aten.index_put.default(self=x, indices.0=eq_1, values=neg, accumulate=False)
  return index_put_1
}
"""
WITHOUT_BATCH = re.sub(r" y: .*?,(?= language)|  symbol 2 .*?\n", "", MASKED)


@pytest.mark.parametrize("text", [MASKED, WITHOUT_BATCH], ids=["another open size", "no other open size"])
def test_a_small_range_is_distinguished_from_its_largest_number(text: str) -> None:
    """Of two rows, at most two are chosen: neither is the number of chosen rows 2, nor that of all rows `u1`."""
    ir = IR.parse(text)
    assert list(wrong_shapes(ir)) == []
    better, _ = optimize(ir, passes=["common-subexpressions"])
    assert "eq_1" not in [node.name for node in better.nodes]
    ir.node("neg").output.shape = (2, 7)
    assert [node.name for node, _ in wrong_shapes(ir)] == ["neg"]
    ir = IR.parse(text)
    ir.node("index_put_1").output.shape = ("u1", 7)
    assert [node.name for node, _ in wrong_shapes(ir)] == ["index_put_1"]


def test_sizes_that_data_decides_may_go_together_without_a_constraint() -> None:
    """As sizes of any range: two numbers of chosen rows are equal in every run, which the graph does not state."""
    text = MASKED.replace("neg: float32[u1, 7] = aten.neg.default(self=index_1)",
                          "neg: float32[u1, 7] = aten.add.Tensor(self=index_1, other=index, alpha=1)")  # fmt: skip
    assert list(wrong_shapes(IR.parse(text))) == []


def test_memory_is_followed_through_views() -> None:
    """A view of a view of an input aliases the input; computed results do not."""
    ir = small(
        "x: float32[2, 3]",
        ["view", "exp"],
        t="aten.t.default(x)",
        view="aten.unsqueeze.default(t, 0)",
        exp="aten.exp.default(t)",
    )
    x, view, exp = ir.graph_inputs[0], ir.node("view").output, ir.node("exp").output
    assert memory_of(view) == {x}
    assert memory_of(exp) == {exp}
    assert is_held_by_caller(ir.node("t").output)
    assert not moves_results(view, ir.node("t").output)
    assert moves_results(exp, x)


def test_idle_dropout_gives_its_input() -> None:
    """Its schema does not declare the alias."""
    ir = small("x: float32[2]", drop="aten.dropout.default(x, 0.5, False)")
    assert memory_of(ir.node("drop").output) == {ir.graph_inputs[0]}


def test_weights_are_what_depends_on_weights_alone() -> None:
    """Not on inputs, not on random numbers, not on buffers that the model changes."""
    ir = small(
        "x: float32[2]",
        ["c", "d", "e", "f"],
        weights="w: float32[2], v: float32[2]",
        a="aten.exp.default(w)",
        b="aten.add.Tensor(a, w)",
        c="aten.add.Tensor(b, x)",
        d="aten.mul.Tensor(w, w)",
        e="aten.rand_like.default(w)",
        f="aten.neg.default(v)",
    )
    ir.mutations = [(ir.params[1], ir.node("c").output)]
    know = Knowledge(ir)
    assert [know.is_weight(ir.node(name).output) for name in "abcdef"] == [True, True, False, True, False, False]


def test_a_model_is_inferred_without_its_weights() -> None:
    """On meta, as everything here."""
    with torch.device("meta"):
        model = nn.Linear(1 << 15, 1 << 15).eval()
        ir = captured(model, torch.randn(1, 1 << 15))
    assert list(wrong_shapes(ir)) == []


def test_the_rule_of_a_collective_is_called_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A search for a plan asks for the same few collectives thousands of times."""
    import torch.distributed._functional_collectives  # noqa: F401  # which registers the rules

    asked: list[str] = []

    def noted(operator: inference.OpOverload, *given: Any) -> Any:
        asked.append(str(operator))
        return call_rule(operator, *given)

    call_rule = inference.call_rule
    monkeypatch.setattr(inference, "call_rule", noted)
    monkeypatch.setattr(Shapes, "known", {})
    x = TensorMeta("x", (2, 3), "float32")
    for _ in range(3):
        (made,) = Shapes(small("x: float32[2, 3]", t="aten.t.default(x)")).results(
            "_c10d_functional.all_gather_into_tensor.default", {"input": x}, {"group_size": 4, "group_name": "tp"}
        ) or [None]
        assert made is not None
        assert made.shape == (8, 3)
    assert asked == ["_c10d_functional.all_gather_into_tensor.default"]
