"""The component modules of the documented package: their names exist, and the documented code runs.

The extension guide, with the doors `analyzer` and `ops.registry`, is in `test_registry.py`.
"""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import torch_ir
from catalogue.mlp import SimpleMLP
from torch_ir import IR, extract_ir
from torch_ir.converter import convert_exported_program
from torch_ir.executor import IRExecutor, execute_ir
from torch_ir.exporter import export_model
from torch_ir.serializer import deserialize_ir, load_ir, save_ir, serialize_ir, validate_ir
from torch_ir.verifier import VerificationReport, verify_ir, verify_ir_with_state_dict
from torch_ir.visualize import generate_op_distribution_pie, ir_to_mermaid
from torch_ir.weight_loader import load_weights, load_weights_pt, validate_weights_against_ir

NAMES = {
    "exporter": {"export_model", "ExportError"},
    "analyzer": {"NodeInfo"},
    "converter": {"convert_exported_program", "ConversionError"},
    "serializer": {"serialize_ir", "deserialize_ir", "save_ir", "load_ir", "validate_ir", "SerializationError"},
    "executor": {"IRExecutor", "execute_ir", "ExecutionError"},
    "verifier": {"verify_ir", "verify_ir_with_state_dict", "VerificationReport"},
    "weight_loader": {
        "load_weights", "load_weights_pt", "load_weights_safetensors", "validate_weights_against_ir", "WeightLoadError",
    },
    "visualize": {"ir_to_mermaid", "generate_op_distribution_pie"},
}  # fmt: skip


@pytest.mark.parametrize("door", NAMES)
def test_a_door_has_its_names_and_they_are_the_public_ones(door: str) -> None:
    module = importlib.import_module(f"torch_ir.{door}")
    assert set(module.__all__) == NAMES[door]
    for name in NAMES[door] & set(torch_ir.__all__):
        assert getattr(module, name) is getattr(torch_ir, name)
    assert NAMES[door] - set(torch_ir.__all__) <= {"validate_weights_against_ir"}


def test_the_registry_has_its_names() -> None:
    registry = importlib.import_module("torch_ir.ops.registry")
    for name in ("register_op", "register_executor", "get_conversion_fn", "get_execution_fn", "list_registered_ops"):
        assert getattr(registry, name) is getattr(torch_ir, name)


def test_importing_the_package_opens_no_door() -> None:
    """Nor does the door to drawing import torch."""
    names = [f"torch_ir.{door}" for door in NAMES]
    program = f"import sys, torch_ir; assert not set({names!r}) & set(sys.modules); import torch_ir.visualize"
    assert subprocess.run([sys.executable, "-c", f"{program}; sys.exit('torch' in sys.modules)"]).returncode == 0


# -- the documented code ----------------------------------------------------------------------------------------------


@pytest.fixture
def ir() -> IR:
    with torch.device("meta"):
        model = SimpleMLP()
    model.eval()
    return extract_ir(model, (torch.randn(1, 4, device="meta"),))


def test_export_and_convert(ir: IR) -> None:
    """The two steps of capture separately yield the graph of `extract_ir`."""
    with torch.device("meta"):
        model = SimpleMLP()
    model.eval()
    exported = export_model(model, (torch.randn(1, 4, device="meta"),), strict=False)
    targets = [str(node.target) for node in exported.graph_module.graph.nodes if node.op == "call_function"]
    assert targets == ["aten.linear.default", "aten.relu.default", "aten.linear.default"]
    converted = convert_exported_program(exported, model_name="SimpleMLP")
    assert [node.op_type for node in converted.nodes] == targets == [node.op_type for node in ir.nodes]
    assert converted.weight_name_mapping == ir.weight_name_mapping


def test_save_load_and_draw(ir: IR, tmp_path: Path) -> None:
    save_ir(ir, tmp_path / "model_ir.json")
    loaded = load_ir(tmp_path / "model_ir.json")
    assert serialize_ir(loaded) == serialize_ir(ir) == serialize_ir(deserialize_ir(serialize_ir(ir)))
    assert validate_ir(loaded)
    found = json.loads((tmp_path / "model_ir.json").read_text())
    assert found["graph_inputs"] == [{"name": "x", "shape": [1, 4], "dtype": "float32"}]
    assert [weight["name"] for weight in found["weights"]] == ["fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias"]
    drawn = ir_to_mermaid(loaded)
    assert drawn.startswith("flowchart TD")
    assert 'w_p_fc1_weight -.->|"8x4"| op_linear' in drawn
    assert '"linear" : 2' in generate_op_distribution_pie(loaded)


def test_run_and_verify(ir: IR, tmp_path: Path) -> None:
    torch.manual_seed(0)
    original = SimpleMLP().eval()
    torch.save(original.state_dict(), tmp_path / "weights.pt")
    weights = load_weights(tmp_path / "weights.pt")
    assert validate_weights_against_ir(weights, ir) == []
    assert validate_weights_against_ir({**weights, "fc1.bias": torch.ones(3)}, ir) != []
    x = torch.randn(1, 4)
    executor = IRExecutor(ir)
    executor.load_weights_from_state_dict(load_weights_pt(tmp_path / "weights.pt"))
    for outputs in (executor.execute((x,)), execute_ir(ir, (x,), weights=weights)):
        torch.testing.assert_close(outputs[0], original(x))
    is_valid, report = verify_ir_with_state_dict(
        ir=ir, state_dict=original.state_dict(), original_model=original, test_inputs=(x,)
    )
    assert is_valid
    assert isinstance(report, VerificationReport)
    path = str(tmp_path / "weights.pt")
    assert verify_ir(ir=ir, weights_path=path, original_model=original, test_inputs=(x,))[0]
    with torch.no_grad():
        original.fc2.bias += 1
    assert not verify_ir(ir=ir, weights_path=path, original_model=original, test_inputs=(x,))[0]
