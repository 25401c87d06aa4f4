"""Functions that survive: blocks and fused operators are functions of the ONNX file, converted once."""

import warnings
from pathlib import Path
from typing import Any

import onnx
import onnxruntime
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.export import Dim

import catalogue
from tests.command_line import failure
from tests.proof import assert_near
from torch_ir import IR, extract_ir, optimize
from torch_ir.cli import main
from torch_ir.errors import CaptureWarning, ConversionError
from torch_ir.ops.pytree import values_of_call
from torch_ir.targets import bind_onnx, to_onnx

SAMPLE = "decoder_kv_cache"
NOT_RUN = "mixed_precision"  # ONNX Runtime has no linear layer in bfloat16
OTHERS = sorted({entry.name for entry in catalogue.entries()} - {SAMPLE, NOT_RUN})
pytestmark = pytest.mark.usefixtures("_seeded")


class Block(nn.Module):
    """A layer with a size-dependent mask, a constant and a fused chain."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.mix = nn.Linear(width, width)
        self.down = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        scores = self.norm(x) @ self.mix(x).transpose(1, 2)
        mask = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).tril()
        scores = scores.masked_fill(~mask, -1e4).softmax(-1)
        return x + torch.relu(self.down(scores @ x)) * torch.tensor([0.5, 2.0]).sum()


class Tower(nn.Module):
    def __init__(self, depth: int = 4, width: int = 8) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(width) for _ in range(depth))
        self.register_buffer("calls", torch.zeros(1))
        self.head = nn.Linear(width, 3)

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        for block in self.blocks:
            x = block(x)
        return self.head(x) + self.calls


def captured(model: nn.Module, *inputs: Any, **options: Any) -> IR:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CaptureWarning)
        return extract_ir(model, inputs, strict=False, **options)


def session_of(path: Path) -> onnxruntime.InferenceSession:
    onnx.checker.check_model(path, full_check=True)
    return onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])


def functions_of(path: Path) -> dict[str, onnx.FunctionProto]:
    return {function.name: function for function in onnx.load(path, load_external_data=False).functions}


@pytest.mark.parametrize("level", [None, "full"])
def test_layers_are_one_function_at_every_size(level: str | None, tmp_path: Path) -> None:
    """With open sizes, a buffer that changes and weights that stay in the checkpoint."""
    model, path = Tower().eval(), tmp_path / "model.onnx"
    sizes = {"x": {0: Dim("batch", min=1), 1: Dim("length", min=2)}}
    ir = captured(model, torch.randn(3, 5, 8), dynamic_shapes=sizes, blocks="function")
    save_file(model.state_dict(), tmp_path / "model.safetensors")
    to_onnx(ir if level is None else optimize(ir, level)[0], path, functions="all")
    bind_onnx(path, tmp_path / "model.safetensors")
    assert sorted(file.name for file in tmp_path.iterdir()) == ["model.onnx", "model.safetensors"]

    functions = functions_of(path)
    body = functions["Block"]
    assert body.domain == "torch_ir"
    assert {node.op_type for node in body.node} >= {"LayerNormalization", "Softmax"}
    assert {entry.key: entry.value for entry in body.metadata_props} == {"torch_ir.op_type": f"{__name__}.Block"}
    shapes = [[dim.dim_param or dim.dim_value for dim in value.type.tensor_type.shape.dim] for value in body.value_info]
    assert ["batch", "length", 8] in shapes
    assert ["length", "length"] in shapes
    if level == "full":
        fused = next(function for name, function in functions.items() if name != "Block")
        assert fused.name in {node.op_type for node in body.node if node.domain == "torch_ir"}
    calls = [node for node in onnx.load(path, load_external_data=False).graph.node if node.op_type == "Block"]
    assert [{entry.key: entry.value for entry in call.metadata_props} for call in calls] == [
        {"torch_ir.node": f"blocks_{number}", "torch_ir.module": f"blocks.{number}"} for number in range(4)
    ]
    assert "blocks.2.mix.weight" in calls[2].input

    session = session_of(path)
    for count, shape in enumerate([(3, 5, 8), (1, 2, 8), (2, 17, 8)], 1):
        x = torch.randn(shape)
        (found, _) = session.run(None, {"x": x.numpy(), "calls": model.calls.numpy()})
        with torch.no_grad():
            assert_near(torch.from_numpy(found), model(x))
        assert model.calls.item() == count


def results(ir: IR, model: nn.Module, inputs: Any, kwargs: Any, path: Path, functions: str) -> list[Any]:
    to_onnx(ir, path, model.state_dict(), functions=functions)
    assert bool(functions_of(path)) == (functions == "all")
    session = session_of(path)
    needed = {given.name for given in session.get_inputs()}
    values = zip(ir.graph_inputs, values_of_call(ir.input_tree, inputs, kwargs), strict=True)
    return session.run(None, {t.name: torch.as_tensor(v).numpy() for t, v in values if t.name in needed})


def check_forms_agree(name: str, path: Path) -> None:
    """Both forms give the same bits, because ONNX Runtime inlines functions before it optimises."""
    entry = catalogue.find(name)
    model, inputs, kwargs = entry.build(), entry.inputs(), entry.kwargs()
    ir = captured(model, *inputs, kwargs=kwargs)
    for graph in (ir.fold_blocks(), optimize(ir.fold_blocks(), "full")[0]):
        if any(node.is_call for node in graph.nodes):
            forms = [results(graph, model, inputs, kwargs, path, functions) for functions in ("all", "none")]
            torch.testing.assert_close(*forms, rtol=0, atol=0, equal_nan=True)


def test_both_forms_give_the_same_results(tmp_path: Path) -> None:
    """On a model with blocks and a cache."""
    check_forms_agree(SAMPLE, tmp_path / "model.onnx")


@pytest.mark.slow
@pytest.mark.parametrize("name", OTHERS)
def test_both_forms_give_the_same_results_on_every_model(name: str, tmp_path: Path) -> None:
    """Whatever a model computes; some have no functions."""
    check_forms_agree(name, tmp_path / "model.onnx")


def test_equal_functions_of_different_layers_are_one(tmp_path: Path) -> None:
    """A fused operator in two kinds of layers is one function of the file."""

    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.ModuleList(nn.Sequential(nn.Linear(4, 4), nn.ReLU()) for _ in range(2))
            self.second = nn.ModuleList(nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Tanh()) for _ in range(2))

        def forward(self, x: Tensor) -> Tensor:
            for layer in (*self.first, *self.second):
                x = layer(x)
            return x

    model, x, path = Two().eval(), torch.randn(2, 4), tmp_path / "model.onnx"
    graph = optimize(captured(model, x, blocks="function"), "full")[0]
    assert sum(str(body).count("fused.linear_relu(") for body in (graph, *graph.functions.values())) > 1
    to_onnx(graph, path, model.state_dict(), functions="all")
    assert [name for name in functions_of(path) if name.startswith("linear_relu")] == ["linear_relu"]
    to_onnx(graph, tmp_path / "blocks.onnx", model.state_dict())
    assert not any(name.startswith("linear_relu") for name in functions_of(tmp_path / "blocks.onnx"))
    with pytest.raises(ConversionError, match="unknown functions='fused'; expected none, blocks, all"):
        to_onnx(graph, path, functions="fused")
    assert_near(torch.from_numpy(session_of(path).run(None, {"x": x.numpy()})[0]), model(x))


def test_unsupported_operators_of_all_functions_are_listed(tmp_path: Path) -> None:
    """Those of the layers and those outside, in one error."""

    class Layer(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.linalg.eigvalsh(x) + x

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList([Layer(), Layer()])

        def forward(self, x: Tensor) -> Tensor:
            for layer in self.layers:
                x = layer(x)
            return torch.linalg.qr(x)[0]

    ir = captured(Model().eval(), torch.randn(3, 3), blocks="function")
    assert "Layer" in ir.functions
    with pytest.raises(ConversionError) as refused:
        to_onnx(ir, tmp_path / "model.onnx")
    said = str(refused.value)
    assert said.count("aten.linalg_eigvalsh.default") == 1
    assert "aten.linalg_qr.default" in said
    assert said.startswith("Model cannot be converted to ONNX: unsupported operators:\n")
    assert not list(tmp_path.iterdir())


def test_a_file_of_126_layers_is_small(tmp_path: Path) -> None:
    """Its size is that of the names of its weights, and of one layer."""
    with torch.device("meta"):
        ir = captured(Tower(126).eval(), torch.empty(1, 4, 8), blocks="function")
    to_onnx(ir, tmp_path / "model.onnx")
    file = onnx.load(tmp_path / "model.onnx", load_external_data=False)
    assert [(function.name, len(function.node) < 40) for function in file.functions] == [("Block", True)]
    assert sum(node.op_type == "Block" for node in file.graph.node) == 126
    assert (tmp_path / "model.onnx").stat().st_size < 126 * 1500 + 10_000


def test_the_command_line_inlines_on_request(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`--functions` is for ONNX and MLIR."""
    given, path = str(tmp_path / "model.json"), tmp_path / "model.onnx"
    captured(Tower(2).eval(), torch.randn(1, 3, 8), blocks="function").save(given)
    assert main(["convert", given, "-o", str(path)]) == 0
    assert list(functions_of(path)) == ["Block"]
    assert main(["convert", given, "-o", str(path), "--functions", "none"]) == 0
    assert list(functions_of(path)) == []
    said = failure(capsys, "convert", given, "-o", "m.py", "--functions", "all")
    assert said == "--functions is for .onnx and .mlir, not for .py"


class Masked(nn.Module):
    """Attention in which a query may see no key."""

    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Linear(8, 8)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        heads = self.mix(x).unflatten(-1, (2, 4)).transpose(1, 2)
        made = nn.functional.scaled_dot_product_attention(heads, heads, heads, attn_mask=mask)
        return x + made.transpose(1, 2).flatten(2)


class MaskedTower(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Masked() for _ in range(3))

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x, mask)
        return x


def test_a_function_of_dynamic_sizes_is_rewritten_too(tmp_path: Path) -> None:
    """A query without keys gets zeros, in a function that reads a size of the graph around it."""
    model, x, mask = MaskedTower().eval(), torch.randn(2, 5, 8), torch.rand(2, 1, 5, 5) > 0.4
    mask[0, 0, 1] = False
    batch = {0: Dim("batch", min=1, max=8)}
    ir = captured(model, x, mask, blocks="function", dynamic_shapes={"x": batch, "mask": batch})
    to_onnx(ir, tmp_path / "masked.onnx", model.state_dict())
    found = session_of(tmp_path / "masked.onnx").run(None, {"x": x.numpy(), "mask": mask.numpy()})[0]
    assert_near(torch.from_numpy(found), model(x, mask))


class FusedProjection(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(8, 24)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        query, key, value = (part.transpose(1, 2) for part in self.qkv(x).unflatten(-1, (3, 2, 4)).unbind(2))
        return nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=mask[:, None, None])


def test_slices_of_one_projection_with_dynamic_sizes_are_rewritten_too(tmp_path: Path) -> None:
    """A query without keys gets zeros; the strides of its parts, such as `24 * seq`, depend on sizes."""
    model = FusedProjection().eval()
    sizes = {0: Dim("batch", min=1, max=6), 1: Dim("seq", min=1, max=24)}
    example = torch.randn(2, 5, 8), torch.ones(2, 5, dtype=torch.bool)
    ir = captured(model, *example, dynamic_shapes={"x": sizes, "mask": sizes})
    to_onnx(ir, tmp_path / "fused.onnx", model.state_dict())
    for size in ((2, 5), (1, 1), (6, 24)):
        x, mask = torch.randn(*size, 8), torch.rand(*size) > 0.4
        mask[0] = False
        found = session_of(tmp_path / "fused.onnx").run(None, {"x": x.numpy(), "mask": mask.numpy()})[0]
        assert_near(torch.from_numpy(found), model(x, mask))
