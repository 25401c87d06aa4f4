"""The documented constructors, fields and records of `TensorMeta`, `OpNode` and `IR`."""

import pytest

from tests.graphs import everything, mlp, tensor
from torch_ir.errors import GraphError
from torch_ir.ir import IR, OpNode, Origin, Param, TensorData, TensorMeta


def test_documented_tensor_meta() -> None:
    """TensorMeta(name, shape, dtype, producer_node=None, producer_output_idx=0), positional or by name."""
    plain = TensorMeta("x", (1, 4), "float32")
    assert (plain.name, plain.shape, plain.dtype) == ("x", (1, 4), "float32")
    assert (plain.producer_node, plain.producer_output_idx) == (None, 0)
    read = TensorMeta("split_1", [2, 4], "float32", "split", 1)
    assert (read.producer_node, read.producer_output_idx, read.shape) == ("split", 1, (2, 4))
    named = TensorMeta(name="a", shape=(), dtype="bool", producer_node="n", producer_output_idx=2)
    assert named.to_dict() == {
        "name": "a", "shape": [], "dtype": "bool", "producer_node": "n", "producer_output_idx": 2,
    }  # fmt: skip


def test_documented_tensor_meta_records() -> None:
    """to_dict leaves the producer out where there is none; from_dict reads both kinds back."""
    for record in (
        {"name": "x", "shape": [1, 4], "dtype": "float32"},
        {"name": "x", "shape": [1], "dtype": "int64", "producer_node": "n", "producer_output_idx": 1},
        {"name": "x", "shape": [2, 3], "dtype": "float32", "stride": [1, 2]},
    ):
        assert TensorMeta.from_dict(record).to_dict() == record


def test_documented_op_node() -> None:
    """OpNode(name, op_type, inputs, outputs, attrs={}); attrs are the node's own."""
    attrs = {"alpha": 1}
    x, y = tensor("x", 2), tensor("y", 2)
    node = OpNode("add", "aten.add.Tensor", [x, x], [y], attrs)
    assert (node.name, node.op_type, node.attrs) == ("add", "aten.add.Tensor", {"alpha": 1})
    assert (list(node.inputs), list(node.outputs)) == ([x, x], [y])
    attrs["alpha"] = 2
    assert node.attrs == {"alpha": 1}
    assert OpNode("r", "aten.relu.default", inputs=[x], outputs=[y]).attrs == {}


def test_documented_op_node_records() -> None:
    """to_dict has the documented keys in the documented order; from_dict restores the node."""
    x, y = tensor("x", 2), tensor("y", 2)
    record = OpNode("y", "aten.softmax.int", [x], [y], {"dim": -1}).to_dict()
    assert list(record) == ["name", "op_type", "inputs", "outputs", "attrs"]
    assert record["inputs"] == [
        {"name": "x", "shape": [2], "dtype": "float32", "producer_node": "x", "producer_output_idx": 0}
    ]
    assert record["outputs"] == [{"name": "y", "shape": [2], "dtype": "float32"}]
    assert OpNode.from_dict(record).to_dict() == record


def test_node_records_keep_names_and_origin() -> None:
    """Fields that the documented record lacks are additional keys, present only if not empty."""
    node = everything().nodes[0]
    record = node.to_dict()
    beside = {key: record[key] for key in ("args", "module", "module_class", "call", "source", "origins")}
    assert beside == {
        "args": ["self", "mat2"], "module": "first", "module_class": "Linear", "call": 1, "source": "model.py:3",
        "origins": ["mm", "t"],
    }  # fmt: skip
    again = OpNode.from_dict(record)
    assert (again.args, again.origin, again.origins) == (node.args, node.origin, node.origins)
    bare = OpNode("n", "aten.neg.default", [], [], origin=Origin("only.a.path"))
    assert OpNode.from_dict(bare.to_dict()).origin == Origin("only.a.path")


def test_documented_ir_by_position() -> None:
    """IR(nodes, graph_inputs, graph_outputs, weights, weight_name_mapping, constants, model_name, pytorch_version)."""
    x, y, k = tensor("x", 2), tensor("y", 2), TensorMeta("c_k", (2,), "float32")
    node = OpNode("y", "aten.mul.Tensor", [x, k], [y])
    data = TensorData.from_numbers([1.0, 2.0], "float32")
    ir = IR([node], [x], [y], [TensorMeta("k", (2,), "float32")], {"c_k": "k"}, {"k": data}, "Scale", "2.13.0").check()
    assert (ir.model_name, ir.pytorch_version) == ("Scale", "2.13.0")
    assert (ir.weights[0].name, ir.weight_name_mapping, ir.constants) == ("k", {"c_k": "k"}, {"k": data})
    assert ir.params[0] is node.inputs[1]
    assert ir.params[0].param == Param(("k",), "constant", data)


def test_documented_ir_defaults() -> None:
    """Only the first four are needed; a weight that no mapping names is read under its own key."""
    ir = IR([], [tensor("x", 2)], [tensor("x", 2)], [tensor("scale", 2)])
    assert (ir.weight_name_mapping, ir.constants, ir.model_name, ir.pytorch_version) == ({"scale": "scale"}, {}, "", "")


def test_a_mapping_to_an_unknown_weight_is_refused() -> None:
    """The message names the entry."""
    with pytest.raises(GraphError, match="weight_name_mapping sends 'p_w' to 'v', which is not among the weights"):
        IR([], [tensor("x", 2)], [tensor("x", 2)], [tensor("w", 2)], {"p_w": "v"})


def test_documented_repr() -> None:
    """The repr counts; the one of tensors and nodes names."""
    assert repr(mlp()) == "IR(model_name='SimpleMLP', nodes=3, inputs=1, outputs=1, weights=4)"
    assert repr(mlp().nodes[1]) == "OpNode('relu', 'aten.relu.default')"
    assert repr(tensor("x", 1, "batch")) == "TensorMeta('x', (1, 'batch'), 'float32')"


def test_documented_dict_round_trip() -> None:
    """from_dict(to_dict) is an equal graph; the given dict is not modified."""
    record = everything().to_dict()
    before = repr(record)
    again = IR.from_dict(record)
    assert again.to_dict() == record
    assert str(again) == str(everything())
    assert repr(record) == before
