"""JSON for Model Explorer: all required fields, and only valid values."""

import json

import pytest
import torch
from torch import nn

from tests.proof import captured
from tests.test_draw import HOSTILE, chain, mlp
from tests.test_draw_views import model
from torch_ir import to_model_explorer
from torch_ir.ir import IR, OpNode, Origin, TensorMeta

# the fields of the viewer's own dataclasses, ai-edge-model-explorer 0.1
GRAPH = {"id", "nodes"}
NODE = {
    *("id", "label", "namespace", "subgraphIds", "attrs", "incomingEdges", "inputsMetadata", "outputsMetadata"),
    "style",
}
EDGE = {"sourceNodeId", "sourceNodeOutputId", "targetNodeInputId"}


def checked(ir: IR, **options: object) -> dict:
    """The record, read back from text, after a look at all that refers to something."""
    record = json.loads(json.dumps(to_model_explorer(ir, **options)))
    graphs = {graph["id"]: graph for graph in record["graphs"]}
    assert len(graphs) == len(record["graphs"])
    for graph in graphs.values():
        assert graph.keys() == GRAPH
        nodes = {node["id"]: node for node in graph["nodes"]}
        assert len(nodes) == len(graph["nodes"])
        for node in graph["nodes"]:
            assert node.keys() <= NODE
            assert graphs.keys() >= set(node.get("subgraphIds", ()))
            assert all(isinstance(item["value"], str) for item in node.get("attrs", ()))
            for edge in node.get("incomingEdges", ()):
                source = nodes[edge["sourceNodeId"]]
                assert edge.keys() == EDGE
                assert edge["sourceNodeOutputId"] in {item["id"] for item in source["outputsMetadata"]}
    return record


def test_a_small_model_to_the_letter() -> None:
    relu = next(node for node in checked(mlp())["graphs"][0]["nodes"] if node["id"] == "relu")
    assert relu == {
        "id": "relu",
        "label": "relu",
        "namespace": "",
        "attrs": [{"key": "op_type", "value": "aten.relu.default"}],
        "incomingEdges": [{"sourceNodeId": "linear", "sourceNodeOutputId": "0", "targetNodeInputId": "0"}],
        "inputsMetadata": [
            {"id": "0", "attrs": [{"key": "__tensor_tag", "value": "linear"}, {"key": "argument", "value": "0"}]}
        ],
        "outputsMetadata": [
            {
                "id": "0",
                "attrs": [{"key": "__tensor_tag", "value": "relu"}, {"key": "tensor_shape", "value": "float32 1x8"}],
            }
        ],
    }
    labels = {node["id"]: (node["label"], node["namespace"]) for node in checked(mlp())["graphs"][0]["nodes"]}
    assert labels == {
        "input x": ("x", "inputs"),
        "weight p_fc1_weight": ("fc1.weight", "fc1"),
        "weight p_fc1_bias": ("fc1.bias", "fc1"),
        "weight p_fc2_weight": ("fc2.weight", "fc2"),
        "weight p_fc2_bias": ("fc2.bias", "fc2"),
        "linear": ("linear", ""),
        "relu": ("relu", ""),
        "linear_1": ("linear", ""),
        "output 0": ("output 0", "outputs"),
    }


def test_namespaces_are_modules_and_their_calls() -> None:
    """A later call of a module is a separate group; a slash in a name does not create one."""
    ir = model(2)
    ir.node("fc1").origin = Origin("model.layers.1.fc", 2, "Linear", "model.py:3", ("model.layers.1@1",))
    ir.node("head").origin = Origin("he/ad", 0, "Linear")
    nodes = {node["id"]: node for node in checked(ir)["graphs"][0]["nodes"]}
    assert nodes["fc0"]["namespace"] == "model/layers/0/fc"
    assert nodes["fc1"]["namespace"] == "model/layers/1 (call 2)/fc (call 3)"
    assert nodes["head"]["namespace"] == "he_ad"
    assert {"key": "source", "value": "model.py:3"} in nodes["fc1"]["attrs"]


def test_placeholders_are_red_and_costs_are_attributes() -> None:
    nodes = {
        node["id"]: node
        for node in checked(mlp(), placeholders={"relu"}, heat={"linear": 64.0}, unit="flops")["graphs"][0]["nodes"]
    }
    assert nodes["relu"]["style"]["borderColor"] == "#c62828"
    assert {"key": "flops", "value": "64"} in nodes["linear"]["attrs"]
    assert "style" not in nodes["linear"]


def test_weights_can_be_left_out() -> None:
    nodes = checked(mlp(), include_weights=False)["graphs"][0]["nodes"]
    assert [node["id"] for node in nodes] == ["input x", "linear", "relu", "linear_1", "output 0"]
    assert [edge["targetNodeInputId"] for edge in nodes[3]["incomingEdges"]] == ["0"]


def test_functions_are_further_graphs() -> None:
    """A node that calls one leads there, however deep."""
    record = checked(model(4).fold_blocks())
    assert record["graphs"][0]["id"] == "Layers"
    called = {node["id"]: node["subgraphIds"] for node in record["graphs"][0]["nodes"] if "subgraphIds" in node}
    assert len(called) == 4
    assert {name for names in called.values() for name in names} == {graph["id"] for graph in record["graphs"][1:]}


def test_control_flow_and_several_outputs() -> None:
    class Choice(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            first, second = torch.cond(x.sum() > 0, lambda y: (y + 1, y), lambda y: (y - 1, y * 2), (x,))
            return first * second

    record = checked(captured(Choice().eval(), torch.randn(3)))
    assert len(record["graphs"]) == 3
    cond = next(node for node in record["graphs"][0]["nodes"] if node["label"].endswith("cond"))
    assert len(cond["subgraphIds"]) == 2
    assert [item["id"] for item in cond["outputsMetadata"]] == ["0", "1"]


def test_names_cannot_meet() -> None:
    """A node may be called as an input or output is here."""
    x = TensorMeta("x", (2,), "float32")
    out = TensorMeta("y", (2,), "float32")
    nodes = [OpNode("input x", "aten.relu.default", [x], [out])]
    ids = [node["id"] for node in checked(IR(nodes, [x], [out]))["graphs"][0]["nodes"]]
    assert ids == ["input x_", "input x", "output 0"]
    checked(chain(HOSTILE))


@pytest.mark.parametrize("name", ["", "model"])
def test_the_collection_has_a_label(name: str) -> None:
    assert checked(IR([], [], [], model_name=name))["label"] == (name or "graph")
