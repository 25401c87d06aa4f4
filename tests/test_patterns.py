"""Patterns: constraints on arguments, and captures of a match."""

from typing import Any

import pytest

from tests.graphs import chain, tensor, weight
from torch_ir import IR, OpNode, Pattern, TensorMeta, op
from torch_ir.ir import Dtype
from torch_ir.rewrite import match


def conv_relu(bias: bool = True, **attrs: Any) -> IR:
    """relu(conv2d(x, w, b)), both with all their arguments."""
    x, w, b = tensor("x", 1, 3, 8, 8), weight("w", 4, 3, 3, 3), weight("b", 4)
    made, out = tensor("conv2d", 1, 4, 6, 6), tensor("relu", 1, 4, 6, 6)
    plain = {"stride": [1, 1], "padding": [0, 0], "dilation": [1, 1], "groups": 1}
    given = [x, w, b] if bias else [x, w]
    values = {**({} if bias else {"bias": None}), **plain, **attrs}
    names = ["input", "weight", "bias"][: len(given)]
    nodes = [
        OpNode("conv2d", "aten.conv2d.default", given, [made], values, args=names),
        OpNode("relu", "aten.relu.default", [made], [out], args=["self"]),
    ]
    return IR(nodes, [x], [out], params=given[1:])


CONV = op("aten.conv2d.default", input="x", weight="w", bias="b", groups=1).named("conv").read_once()


def test_captures_and_nodes() -> None:
    """Tensors and attributes are captured by name, a named node as itself, and nodes are listed producers first."""
    ir = conv_relu()
    conv, relu = ir.nodes
    found = match(op("aten.relu.default", self=CONV), relu)
    assert found is not None
    assert found.node is relu
    assert found.captures == {"x": ir.graph_inputs[0], "w": ir.params[0], "b": ir.params[1], "conv": conv}
    assert found["w"].key == "w"
    assert found.nodes == (conv, relu)


def test_an_absent_optional_argument_is_captured_as_none() -> None:
    found = match(CONV, conv_relu(bias=False).nodes[0])
    assert found is not None
    assert found["b"] is None


@pytest.mark.parametrize(
    ("pattern", "matches"),
    [
        (op("aten.conv2d.default"), True),
        (op("aten.conv2d"), True),
        (op("aten.conv1d.default"), False),
        (op("aten.conv1d.default", "aten.conv2d.default"), True),
        (op("aten.conv2d.default", groups=1), True),
        (op("aten.conv2d.default", groups=2), False),
        (op("aten.conv2d.default", groups=True), False),
        (op("aten.conv2d.default", groups=...), True),
        (op("aten.conv2d.default", stride=[1, 1]), True),
        (op("aten.conv2d.default", stride=(1, 1)), True),
        (op("aten.conv2d.default", stride=[1]), False),
        (op("aten.conv2d.default", stride=1), False),
        (op("aten.conv2d.default", bias=None), False),
        (op("aten.conv2d.default", bias=...), True),
        (op("aten.conv2d.default", nothing="n"), False),
        (op("aten.conv2d.default", nothing=...), True),
        (op("aten.conv2d.default", input=op("aten.relu.default")), False),
        (op("aten.conv2d.default", stride=op("aten.relu.default")), False),
        (op("aten.conv2d.default").when(groups=1), True),
        (op("aten.conv2d.default").when(groups=2), False),
        (op("aten.conv2d.default").when(nothing=1), False),
        (op("aten.conv2d.default", stride="s", padding="p"), True),
        (op("aten.conv2d.default", stride="s", dilation="s"), True),
        (op("aten.conv2d.default", stride="s", padding="s"), False),
        (op("aten.conv2d.default", stride="s", weight="s"), False),
    ],
)
def test_what_an_argument_must_be(pattern: Pattern, matches: bool) -> None:
    """Texts capture, patterns look at the producer, other values are equal, and equal names are the same thing."""
    assert (match(pattern, conv_relu().nodes[0]) is not None) is matches


def test_none_is_an_absent_argument() -> None:
    assert match(op("aten.conv2d.default", bias=None), conv_relu(bias=False).nodes[0]) is not None


def test_text_is_compared_only_where_it_says_so() -> None:
    """A plain text captures; `when` compares it, and a typed name is a value anyway."""
    x, y = tensor("x", 2), tensor("y", 2)
    gelu = OpNode("gelu", "aten.gelu.default", [x], [y], {"approximate": "tanh", "dtype": Dtype("half")}, args=["self"])
    found = match(op("aten.gelu.default", approximate="how"), gelu)
    assert found is not None
    assert found["how"] == "tanh"
    assert match(op("aten.gelu.default").when(approximate="tanh"), gelu)
    assert not match(op("aten.gelu.default").when(approximate="none"), gelu)
    assert match(op("aten.gelu.default", dtype=Dtype("half")), gelu)
    assert not match(op("aten.gelu.default", dtype=Dtype("float32")), gelu)


def test_read_once_counts_every_reader() -> None:
    """A node, a graph output, and a second argument of the same node are readers."""
    once = op("aten.neg.default").read_once()
    ir = chain("aten.neg.default", "aten.relu.default")
    neg, relu = ir.nodes
    assert match(once, neg)
    ir.graph_outputs = [relu.output, neg.output]
    assert not match(once, neg)
    ir.graph_outputs = [relu.output]
    assert match(once, neg)
    relu.set_inputs([neg.output, neg.output], ["self", "other"])
    assert not match(once, neg)
    assert match(op("aten.relu.default", self=op("aten.neg.default").named("n"), other="n"), relu) is None
    same = op("aten.neg.default").named("n")
    assert match(op("aten.relu.default", self=same, other=same), relu)


def test_elements_of_a_list_and_outputs_by_number() -> None:
    """`tensors.1` is an element; a pattern refers to the first output unless it says which."""
    x, first, second, joined = tensor("x", 4), tensor("a", 2), tensor("b", 2), tensor("cat", 4)
    split = OpNode("split", "aten.chunk.default", [x], [first, second], {"chunks": 2, "dim": 0}, args=["self"])
    cat = OpNode("cat", "aten.cat.default", [second, first], [joined], {"dim": 0}, args=["tensors.0", "tensors.1"])
    IR([split, cat], [x], [joined])
    halves = op("aten.chunk.default", self="x").named("split")
    swapped = op("aten.cat.default", **{"tensors.0": halves.output(1), "tensors.1": halves})
    found = match(swapped, cat)
    assert found is not None
    assert found.nodes == (split, cat)
    assert found["split"] is split
    assert match(op("aten.cat.default", **{"tensors.0": halves}), cat) is None
    whole = match(op("aten.cat.default", tensors="all"), cat)
    assert whole is not None
    assert whole["all"] == [second, first]
    assert match(op("aten.cat.default", **{"tensors.2": "c"}), cat) is None


def test_patterns_are_values() -> None:
    """Refining a pattern returns another; equal ones are equal; each has its size and captures."""
    plain = op("aten.conv2d.default", input="x")
    assert plain.named("conv") != plain
    assert plain == op("aten.conv2d.default", input="x")
    nested = op("aten.relu.default", self=CONV)
    assert (nested.size, nested.captures) == (2, {"x", "w", "b", "conv"})
    assert str(nested) == "aten.relu.default(self=aten.conv2d.default())"


def test_a_node_of_a_given_tensor_has_no_producer() -> None:
    """A pattern never matches a graph input or a weight."""
    free = TensorMeta("x", (2,), "float32")
    relu = OpNode("relu", "aten.relu.default", [free], [tensor("y", 2)], args=["self"])
    assert match(op("aten.relu.default", self=op("aten.neg.default")), relu) is None
    assert match(op("aten.relu.default", self="x"), relu) is not None
