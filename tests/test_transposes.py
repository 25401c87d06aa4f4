"""Transpositions: one canonical form, pairs composed, and inverse pairs cancelled through operators."""

import pytest
import torch

from tests.rewriting import lines, optimized, small, text
from torch_ir import IR, extract_ir
from torch_ir.analysis.values.prologue import split_prologue


def _ops(ir: IR) -> list[str]:
    return [node.op_type.split(".")[1] for node in ir.nodes]


@pytest.mark.parametrize(
    ("call", "dims"),
    [
        ("aten.transpose.int(x, 1, -1)", [0, 2, 1]),
        ("aten.swapdims.default(x, 0, 2)", [2, 1, 0]),
        ("aten.swapaxes.default(x, -3, 1)", [1, 0, 2]),
        ("aten.movedim.int(x, 0, 2)", [1, 2, 0]),
        ("aten.movedim.intlist(x, [0, 1], [-1, 0])", [1, 2, 0]),
        ("aten.moveaxis.int(x, 2, 0)", [2, 0, 1]),
        ("aten.mT.default(x)", [0, 2, 1]),
        ("aten.numpy_T.default(x)", [2, 1, 0]),
        ("aten.permute.default(x, [-1, 0, 1])", [2, 0, 1]),
    ],
)
def test_every_spelling_becomes_a_permute(call: str, dims: list[int]) -> None:
    """Dimensions are counted from the front."""
    (node,) = optimized(small("x: float32[2, 3, 4]", last=call), ["transposes"], exact=True).nodes
    assert (node.op_type, node.attrs) == ("aten.permute.default", {"dims": dims})


def test_a_matrix_and_what_is_none() -> None:
    """t is a permute of a matrix, and nothing of a vector."""
    matrix = small("x: float32[2, 3]", t="aten.t.default(x)", exp="aten.exp.default(t)")
    vector = small("x: float32[3]", t="aten.t.default(x)", exp="aten.exp.default(t)")
    assert _ops(optimized(matrix, ["transposes"], exact=True)) == ["permute", "exp"]
    assert _ops(optimized(vector, ["transposes"], exact=True)) == ["exp"]


@pytest.mark.parametrize(
    "call", ["aten.transpose.int(x, 0, -1)", "aten.movedim.int(x, -1, 0)", "aten.moveaxis.intlist(x, [0], [-1])"]
)
def test_a_number_has_no_dimensions_to_move(call: str) -> None:
    """Torch accepts 0 and -1 there; the node is removed."""
    ir = small("x: float32[]", moved=call, exp="aten.exp.default(moved)")
    assert _ops(optimized(ir, ["transposes"], exact=True)) == ["exp"]


def test_two_are_one_or_none() -> None:
    """Orders are composed."""
    ir = small(
        "x: float32[2, 3, 4]",
        ["exp", "sin"],
        a="aten.permute.default(x, [1, 2, 0])",
        b="aten.transpose.int(a, 0, 1)",
        exp="aten.exp.default(b)",
        c="aten.permute.default(a, [2, 0, 1])",
        sin="aten.sin.default(c)",
    )
    assert text(optimized(ir, ["transposes"], exact=True)) == lines("""
        graph(x: float32[2, 3, 4]) {
          permute: float32[4, 3, 2] strides [1, 4, 12] = aten.permute.default(self=x, dims=[2, 1, 0])
          exp: float32[4, 3, 2] strides [1, 4, 12] = aten.exp.default(self=permute)
          sin: float32[2, 3, 4] = aten.sin.default(self=x)
          return exp, sin
        }
    """)


def test_sizes_of_one_are_reshaped() -> None:
    """Where only sizes of 1 move, elements stay in their order."""
    ir = small("x: float32[2, 1, 3]", move="aten.transpose.int(x, 0, 1)", exp="aten.exp.default(move)")
    after = optimized(ir, ["near-identities"], exact=True)
    assert (after.nodes[0].op_type, after.nodes[0].attrs) == ("aten.reshape.default", {"shape": [1, 2, 3]})
    assert optimized(ir, ["transposes"], exact=True).nodes[0].op_type == "aten.permute.default"


def test_a_pair_cancels_through_operators() -> None:
    """relu, a sum with a number and a cast work on any order."""
    ir = small(
        "x: float32[2, 3, 4]",
        there="aten.permute.default(x, [0, 2, 1])",
        relu="aten.relu.default(there)",
        add="aten.add.Tensor(relu, 2.0)",
        half="aten.to.dtype(add, Dtype('float16'))",
        back="aten.permute.default(half, [0, 2, 1])",
        exp="aten.exp.default(back)",
    )
    after = optimized(ir, ["transposes"], exact=True)
    assert _ops(after) == ["relu", "add", "to", "exp"]
    assert [set(node.origins) for node in after.nodes[:2]] == [{"relu", "back"}, {"add", "back"}]


def test_both_operands_carry_it() -> None:
    """x' + y', transposed back, is x + y."""
    ir = small(
        "x: float32[2, 3], y: float32[2, 3]",
        a="aten.t.default(x)",
        b="aten.t.default(y)",
        mul="aten.mul.Tensor(a, b)",
        back="aten.t.default(mul)",
        exp="aten.exp.default(back)",
    )
    assert text(optimized(ir, ["transposes"], exact=True)) == lines("""
        graph(x: float32[2, 3], y: float32[2, 3]) {
          mul_1: float32[2, 3] = aten.mul.Tensor(self=x, other=y)
          exp: float32[2, 3] = aten.exp.default(self=mul_1)
          return exp
        }
    """)


def test_a_weight_is_permuted_once() -> None:
    """The scale of the last dimension becomes one of a middle dimension, in the prologue."""
    ir = small(
        "x: float32[2, 3, 4, 5]",
        weights="scale: float32[3]",
        there="aten.permute.default(x, [0, 2, 3, 1])",
        mul="aten.mul.Tensor(there, scale)",
        back="aten.permute.default(mul, [0, 3, 1, 2])",
        exp="aten.exp.default(back)",
    )
    after = optimized(ir, ["transposes", "reshapes"], exact=True)
    once, every = split_prologue(after)
    assert [node.op_type for node in every] == ["aten.mul.Tensor", "aten.exp.default"]
    assert once[-1].output.shape == (1, 3, 1, 1)


def test_two_that_do_not_cancel_are_one() -> None:
    """One permute fewer is fewer."""
    ir = small(
        "x: float32[2, 3, 4]",
        there="aten.permute.default(x, [1, 2, 0])",
        relu="aten.relu.default(there)",
        on="aten.permute.default(relu, [1, 2, 0])",
        exp="aten.exp.default(on)",
    )
    after = optimized(ir, ["transposes"], exact=True)
    assert _ops(after) == ["permute", "relu", "exp"]
    assert after.nodes[0]["dims"] == [2, 0, 1]


@pytest.mark.parametrize(
    ("returns", "weights", "calls"),
    [
        # another consumer of the intermediate result
        (["exp", "relu"], "", {"relu": "aten.relu.default(there)", "back": "aten.t.default(relu)"}),
        # the other operand has no permute, and none must be added
        (["exp"], "", {"add": "aten.add.Tensor(there, y)", "back": "aten.t.default(add)"}),
        # not element by element
        (["exp"], "", {"soft": "aten.softmax.int(there, -1)", "back": "aten.t.default(soft)"}),
        (["exp"], "w: float32[2, 2]", {"linear": "aten.linear.default(there, w)", "back": "aten.t.default(linear)"}),
    ],
)
def test_where_it_stays(returns: list[str], weights: str, calls: dict[str, str]) -> None:
    """Permutes are never added, nor moved through operators that depend on the order."""
    ir = small(
        "x: float32[2, 3], y: float32[3, 2]",
        returns,
        weights=weights,
        there="aten.t.default(x)",
        **calls,
        exp="aten.exp.default(back)",
    )
    assert _ops(optimized(ir, ["transposes"], exact=True)).count("permute") == 2


def test_a_permute_that_others_read_is_not_doubled() -> None:
    """It stays for its other reader, and the one after relu would only move."""
    ir = small(
        "x: float32[2, 3, 4]",
        ["exp", "sin"],
        there="aten.permute.default(x, [1, 2, 0])",
        relu="aten.relu.default(there)",
        on="aten.permute.default(relu, [1, 2, 0])",
        exp="aten.exp.default(on)",
        sin="aten.sin.default(there)",
    )
    assert _ops(optimized(ir, ["transposes"], exact=True)) == ["permute", "relu", "permute", "exp", "sin"]


def test_random_numbers_are_not_moved() -> None:
    """Which element is dropped depends on the order."""
    ir = small(
        "x: float32[2, 3]",
        there="aten.t.default(x)",
        drop="aten.dropout.default(there, 0.5, True)",
        back="aten.t.default(drop)",
        exp="aten.exp.default(back)",
    )
    assert _ops(optimized(ir, ["transposes"], exact=True)) == ["permute", "dropout", "permute", "exp"]


def test_a_transposed_weight_is_left() -> None:
    """It is computed once, and moving it saves nothing."""
    ir = small(
        "x: float32[2, 3]",
        weights="w: float32[4, 3]",
        relu="aten.relu.default(w)",
        t="aten.t.default(relu)",
        mm="aten.mm.default(x, t)",
    )
    assert _ops(optimized(ir, ["transposes"], exact=True)) == ["relu", "permute", "mm"]


def test_a_dimension_is_split_before_it_moves() -> None:
    """A split after a permute joins the reshape before it."""
    ir = small(
        "x: float32[8, 2, 6]",
        rows="aten.reshape.default(x, [8, 12])",
        t="aten.t.default(rows)",
        split="aten.reshape.default(t, [1, 4, 3, 8])",
        exp="aten.exp.default(split)",
    )
    after = optimized(ir, ["transposes", "reshapes"], exact=True)
    assert [(node.op_type, node.attrs) for node in after.nodes[:-1]] == [
        ("aten.reshape.default", {"shape": [8, 1, 4, 3]}),
        ("aten.permute.default", {"dims": [1, 2, 3, 0]}),
    ]


@pytest.mark.parametrize(
    "calls",
    [
        {"split": "aten.reshape.default(t, [6, 16])"},  # crosses the border of two dimensions
        {"split": "aten.reshape.default(t, [96])"},
        {"other": "aten.exp.default(t)", "split": "aten.reshape.default(t, [4, 3, 8])"},  # read by another node
    ],
)
def test_a_reshape_that_does_more_stays_behind(calls: dict[str, str]) -> None:
    """Only splitting a dimension commutes with moving it, and only a single consumer makes it useful."""
    ir = small(
        "x: float32[8, 2, 6]",
        ["split", *([] if "other" not in calls else ["other"])],
        rows="aten.reshape.default(x, [8, 12])",
        t="aten.permute.default(rows, [1, 0])",
        **calls,
    )
    after = optimized(ir, ["transposes", "reshapes"], exact=True)
    assert _ops(after) == _ops(ir)


def test_attention_of_torch() -> None:
    """nn.MultiheadAttention splits heads after it moved them: five of eleven reshapes go."""

    class Attention(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention = torch.nn.MultiheadAttention(8, 2, batch_first=True)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.attention(x, x, x, need_weights=False)[0]  # type: ignore[no-any-return]

    ir = extract_ir(Attention().eval().to("meta"), (torch.empty(3, 5, 8, device="meta"),))
    after = optimized(ir, ["casts", "identities", "transposes", "reshapes"], exact=True)
    spellings = {"reshape", "view", "unsqueeze", "squeeze", "unflatten"}
    assert [sum(name in spellings for name in _ops(graph)) for graph in (ir, after)] == [11, 6]
