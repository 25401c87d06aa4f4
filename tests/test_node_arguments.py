"""Arguments of a node: by name, in lists, and by position if they have no names."""

import pytest

from tests.graphs import everything, mlp, tensor, weight
from torch_ir.errors import GraphError
from torch_ir.ir import OpNode, TensorMeta


def test_arguments_are_asked_for_by_name() -> None:
    """node["weight"] is a tensor, node["stride"] an attribute, in the same way."""
    x, w = tensor("x", 1, 3, 8, 8), weight("p_w", 4, 3, 1, 1)
    attrs = {"bias": None, "stride": [2, 2]}
    node = OpNode("conv", "aten.conv2d.default", [x, w], [tensor("conv", 1, 4, 4, 4)], attrs, args=["input", "weight"])
    assert node["weight"] is w
    assert node["stride"] == [2, 2]
    assert node["bias"] is None


def test_list_arguments_come_as_lists_with_none_where_one_is_absent() -> None:
    """`indices.0` absent and `indices.1` a tensor is the list [None, tensor]."""
    x, rows = tensor("x", 3, 4), tensor("rows", 2, dtype="int64")
    node = OpNode(
        "index", "aten.index.Tensor", [x, rows], [tensor("index", 3, 2)], {"indices.0": None},
        args=["self", "indices.1"],
    )  # fmt: skip
    assert node["indices"] == [None, rows]
    assert node["indices.1"] is rows


def test_the_order_of_a_long_list_is_by_number() -> None:
    """Element 10 comes after element 9, not after element 1."""
    parts = [tensor(f"t{index}", 2) for index in range(12)]
    args = [f"tensors.{index}" for index in range(12)]
    node = OpNode("cat", "aten.cat.default", parts[::-1], [tensor("cat", 24)], {"dim": 0}, args=args[::-1])
    assert node["tensors"] == parts


def test_lists_of_lists_keep_their_nesting() -> None:
    """An element of a list argument may be a list itself."""
    a, b = tensor("a", 2), tensor("b", 2)
    node = OpNode("op", "my.op.default", [a, b], [], {"pairs.0.1": 7}, args=["pairs.0.0", "pairs.1.0"])
    assert node["pairs"] == [[a, 7], [b]]


def test_an_unknown_argument_names_the_nearest() -> None:
    """The error for a typo suggests the argument."""
    with pytest.raises(KeyError, match=r"OpNode\('linear', .*\) has no argument 'wieght'; did you mean 'weight'\?"):
        mlp().nodes[0]["wieght"]
    node = OpNode("cat", "aten.cat.default", [tensor("a", 2)], [], args=["tensors.0"])
    with pytest.raises(KeyError, match=r"no argument 'tensor'; did you mean 'tensors'\?"):
        node["tensor"]


def test_without_names_arguments_go_by_position() -> None:
    """The documented constructor has no argument names: positions are used until a schema provides names."""
    node = OpNode("relu", "aten.relu.default", [tensor("x", 2)], [tensor("relu", 2)])
    assert node.args == ("0",)
    assert not node.has_named_args
    assert node["0"].name == "x"
    node.set_inputs(node.inputs, ["self"])
    assert node.has_named_args
    assert node["self"].name == "x"


def test_argument_names_and_inputs_go_together() -> None:
    """As many names as tensors, or none."""
    node = OpNode("add", "aten.add.Tensor", [tensor("x", 2), tensor("y", 2)], [])
    with pytest.raises(GraphError, match=r"OpNode\('add', .*\) has 2 inputs, but 1 argument names"):
        node.set_inputs(node.inputs, ["self"])
    assert node.args == ("0", "1")


def test_the_only_output() -> None:
    """`output` is for nodes with one; for others it is an error that names the node."""
    assert mlp().nodes[0].output.name == "linear"
    with pytest.raises(GraphError, match=r"OpNode\('max_1', 'aten.max.dim'\) has 2 outputs, not one"):
        assert everything().node("max_1").output


def test_a_node_is_found_by_name() -> None:
    """An unknown name is answered with the nearest."""
    assert mlp().node("relu").op_type == "aten.relu.default"
    with pytest.raises(KeyError, match=r"no node is called 'linear_2'; did you mean 'linear_1'"):
        mlp().node("linear_2")


def test_an_argument_that_may_be_absent() -> None:
    """`get` returns what the node has, None or the default for what it lacks."""
    x, w = TensorMeta("x", (2, 4), "float32"), TensorMeta("w", (3, 4), "float32")
    out = TensorMeta("y", (2, 3), "float32")
    node = OpNode("y", "aten.linear.default", [x, w], [out], {"bias": None}, args=["input", "weight"])
    assert node.get("weight") is w
    assert node.get("bias", "none") is None
    assert (node.get("groups"), node.get("groups", 1)) == (None, 1)


def test_the_key_of_a_computation() -> None:
    """It ignores names and the order of attributes, and distinguishes 1, 1.0 and True."""

    def key(**attrs: object) -> object:
        x = TensorMeta("x", (2,), "float32")
        return OpNode("y", "aten.sum.dim_IntList", [x], [x.copy()], attrs, args=["self"]).computation

    assert key(dim=[0], keepdim=True) == key(keepdim=True, dim=[0])
    assert len({key(dim=1), key(dim=1.0), key(dim=True), key(dim="1")}) == 4
