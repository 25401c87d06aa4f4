"""Weights that are stacks of numbered tensors of a checkpoint, such as the experts of a layer."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.architectures import architectures
from torch_ir import (
    IR,
    GraphError,
    IRExecutor,
    SerializationError,
    WeightLoadError,
    cost_report,
    execute_ir,
    extract_ir,
    open_weights,
    random_weights,
    shard,
    to_mlir,
    to_python,
    to_torch,
)
from torch_ir.cli import main
from torch_ir.ir.regroup.separate_stacks import without_stacks
from torch_ir.llm import checkpoint_weights, to_checkpoint_layout

TEXT = """
graph Net(x: float32[2, 4]) {
  stack w: float32[3, 4, 4] = "experts.*.w"
  matmul: float32[3, 2, 4] = aten.matmul.default(self=x, other=w)
  return matmul
}
"""
X = torch.randn(2, 4, generator=torch.Generator().manual_seed(0))
WEIGHTS = {f"experts.{n}.w": torch.randn(4, 4, generator=torch.Generator().manual_seed(n)) for n in range(3)}
EXPECTED = torch.stack([X @ each for each in WEIGHTS.values()])


@pytest.fixture
def ir() -> IR:
    return IR.parse(TEXT)


def test_every_format_keeps_it(ir: IR, tmp_path: Path) -> None:
    """JSON, text and protobuf have the kind and the key."""
    assert '"kind": "stack"' in ir.to_json()
    assert 'stack w: float32[3, 4, 4] = "experts.*.w"' in str(ir)
    for name in ("graph.json", "graph.ir", "graph.pb"):
        ir.save(tmp_path / name)
        assert IR.load(tmp_path / name).to_json() == ir.to_json()


def test_rows_of_cost_fold() -> None:
    """The `*` of a key is a step of the path; the stacks of layers that cost the same are one row."""
    ir = IR.parse("""
graph Net(x: float32[2, 4]) {
  stack w: float32[3, 4, 4] = "layers.0.experts.*.w"
  stack v: float32[3, 4, 4] = "layers.1.experts.*.w"
  add: float32[3, 4, 4] = aten.add.Tensor(self=w, other=v, alpha=1)
  matmul: float32[3, 2, 4] = aten.matmul.default(self=x, other=add)
  return matmul
}
""")
    rows = {row.name: row.params for row in cost_report(ir).rows}
    assert rows["layers.*.experts.*"] == 96


@pytest.mark.parametrize("form", ["state dict", "file", "stream", "isolated", "own key"])
def test_its_members_are_bound(ir: IR, tmp_path: Path, form: str) -> None:
    """Tensors are stacked when they are bound, or when they are read."""
    save_file(WEIGHTS, tmp_path / "model.safetensors")
    if form == "isolated":
        results = execute_ir(ir, (X,), WEIGHTS, isolated=True)
        results += execute_ir(ir, (X,), open_weights(tmp_path), isolated=True)
    else:
        weights: Any = {
            "state dict": WEIGHTS,
            "file": tmp_path,
            "stream": open_weights(tmp_path),
            "own key": {"experts.*.w": torch.stack([*WEIGHTS.values()])},
        }[form]
        results = IRExecutor(ir, weights).execute((X,))
    assert all(torch.allclose(each, EXPECTED) for each in results)


def test_elements_across_members(ir: IR, tmp_path: Path) -> None:
    """A part of a stack in a file is read without reading the rest."""
    from torch_ir.run.weight_files import weights_for

    save_file(WEIGHTS, tmp_path / "model.safetensors")
    stack = weights_for([ir], open_weights(tmp_path))["experts.*.w"]
    flat = torch.stack([*WEIGHTS.values()]).flatten()
    for start, stop in ((0, 48), (5, 9), (14, 35), (16, 32), (47, 48), (7, 7)):
        assert torch.equal(stack.elements(start, stop), flat[start:stop])


WRONG = {
    "missing": ({"experts.1.w": None}, "'experts.1.w' is missing"),
    "renamed": ({"experts.1.w": None, "expert.1.w": X}, "'experts.1.w' is missing; did you mean 'expert.1.w'"),
    "shape": ({"experts.2.w": torch.zeros(4, 5)}, r"'experts.2.w' has shape \[4, 5\], the graph needs \[4, 4\]"),
    "dtype": ({"experts.0.w": torch.zeros(4, 4).half()}, "'experts.0.w' is float16, the graph needs float32"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_member_is_named(ir: IR, name: str) -> None:
    changes, message = WRONG[name]
    weights = {key: each for key, each in {**WEIGHTS, **changes}.items() if each is not None}
    with pytest.raises(WeightLoadError, match=message) as caught:
        IRExecutor(ir, weights)
    assert "unexpected weight 'experts" not in str(caught.value)


@pytest.mark.parametrize(
    ("old", "new"),
    [('"experts.*.w"', '"experts.0.w"'), ('"experts.*.w"', '"*.*.w"'), ("[3, 4, 4]", "[3000000, 4, 4]")],
)
def test_what_is_no_stack(ir: IR, old: str, new: str) -> None:
    """A stack has one key with one `*`, and a bounded number of members."""
    with pytest.raises((GraphError, SerializationError)) as caught:
        IR.parse(TEXT.replace(old, new).replace("[3, 2, 4]", "[3000000, 2, 4]" if "3000" in new else "[3, 2, 4]"))
    assert caught.value.rule == "R5"


# -- other ways out ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def mixtral() -> tuple[Any, IR, torch.Tensor, torch.Tensor]:
    model = next(each for each in architectures() if each.name == "mixtral").build()
    ids = torch.randint(3, 50, (1, 4), generator=torch.Generator().manual_seed(0))
    ir = extract_ir(model, (), kwargs={"input_ids": ids, "use_cache": False}, strict=False)
    with torch.no_grad():
        expected = model(input_ids=ids, use_cache=False).logits
    return model, to_checkpoint_layout(ir, model), ids, expected


def test_experts_are_few_weights(mixtral: Any) -> None:
    """The keys are those of the checkpoint; no node unstacks and stacks experts."""
    model, ir, _, _ = mixtral
    assert {key for param in ir.params for key in param.stored_keys if param.param.in_state_dict} == {
        *checkpoint_weights(model)
    }
    layers = model.config.num_hidden_layers
    assert sum(param.param.kind == "stack" for param in ir.params) == 3 * layers
    assert not any(node.op_type in ("aten.stack.default", "aten.unbind.int") for node in ir.nodes[: 2 * layers])


def test_one_weight_for_each_member(mixtral: Any) -> None:
    """Targets that name every tensor of a checkpoint get nodes that stack them."""
    model, ir, ids, expected = mixtral
    separate = without_stacks(ir)
    weights = checkpoint_weights(model)
    assert {param.key for param in separate.params if param.param.in_state_dict} == {*weights}
    for graph in (ir, separate):
        got = IRExecutor(graph, weights)(input_ids=ids, use_cache=False)["logits"]
        torch.testing.assert_close(got, expected)


def test_targets(mixtral: Any, ir: IR) -> None:
    """A module, Python source, MLIR and a sharded graph take the keys of the checkpoint."""
    assert "experts.1.w" in to_mlir(ir)
    assert torch.allclose(to_torch(ir, WEIGHTS)(X), EXPECTED)
    model, stacked, ids, expected = mixtral
    module = to_torch(stacked, checkpoint_weights(model))
    torch.testing.assert_close(module(input_ids=ids, use_cache=False)["logits"], expected)
    assert "block_sparse_moe.experts.1.w1.weight" in to_python(stacked)
    layers = shard(stacked, {"model.layers.*.self_attn.q_proj": "colwise_gather_output"}, {"tp": 2})
    assert any("experts.1.w1" in str(param.key) for param in layers.params)


def test_bound_to_onnx(ir: IR, tmp_path: Path) -> None:
    """ONNX refers to the tensors of a checkpoint where they are, each under its key."""
    onnxruntime = pytest.importorskip("onnxruntime")
    from torch_ir import bind_onnx, to_onnx

    save_file(WEIGHTS, tmp_path / "model.safetensors")
    to_onnx(ir, tmp_path / "model.onnx")
    bind_onnx(tmp_path / "model.onnx", tmp_path / "model.safetensors")
    to_onnx(ir, tmp_path / "whole.onnx", WEIGHTS)
    for name in ("model.onnx", "whole.onnx"):
        session = onnxruntime.InferenceSession(tmp_path / name, providers=["CPUExecutionProvider"])
        assert torch.allclose(torch.from_numpy(session.run(None, {"x": X.numpy()})[0]), EXPECTED, atol=1e-6)


def test_the_command_names_a_member(mixtral: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`weights check` compares each expert by its own key."""
    model, ir, _, _ = mixtral
    ir.save(tmp_path / "graph.json")
    model.save_pretrained(tmp_path)
    file = tmp_path / "model.safetensors"
    weights = load_file(file)
    key = next(key for key in weights if "experts.2.w3" in key)
    weights[key.replace("w3", "w8")] = weights.pop(key)
    assert main(["weights", "check", str(tmp_path / "graph.json"), str(file)]) == 0
    capsys.readouterr()
    save_file(weights, file)
    assert main(["weights", "check", str(tmp_path / "graph.json"), str(file)]) == 1
    assert f"{key!r} is missing; did you mean {key.replace('w3', 'w8')!r}" in capsys.readouterr().out


def test_random_weights_bind(mixtral: Any) -> None:
    _, ir, ids, expected = mixtral
    got = IRExecutor(ir, random_weights(ir))(input_ids=ids, use_cache=False)["logits"]
    assert got.shape == expected.shape
