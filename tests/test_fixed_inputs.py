"""Inputs whose values are part of the capture."""

import inspect
import json
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import nn

from tests.command_line import command
from torch_ir import (
    CaptureWarning,
    ConversionError,
    ExportError,
    GuardError,
    compile,
    execute_ir,
    extract_ir,
    load_ir,
    optimize,
    to_onnx,
    to_python,
)
from torch_ir import verify_ir_with_state_dict as verify

GRID = torch.tensor([[1, 4, 4], [1, 4, 8]])


class Pieces(nn.Module):
    """Reads lengths as Python numbers, in every way that models do."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        ends = torch.cumsum(torch.repeat_interleave(lengths, 1), 0).tolist()
        parts = [self.fc(part) * (end + 1) for part, end in zip(x.split(lengths.tolist()), ends, strict=True)]
        if lengths.max() > 2:
            parts = parts[::-1]
        return torch.cat(parts) + torch.arange(int(lengths.sum())).unsqueeze(1)


def test_python_reads_the_values() -> None:
    """The graph has no data-dependent operator, and equals the model for these lengths, also after optimising."""
    model, x, lengths = Pieces().eval(), torch.randn(6, 4), torch.tensor([1, 3, 2])
    weights = model.state_dict()
    ir = extract_ir(Pieces().to("meta").eval(), (x.to("meta"),), fixed={"lengths": [1, 3, 2]})
    assert [node.op_type for node in ir.nodes] == [
        "torch_ir.fixed_value.default",
        "aten.split_with_sizes.default",
        *["aten.linear.default", "aten.mul.Tensor"] * 3,
        "aten.cat.default",
        "aten.add.Tensor",
    ]
    for graph in (ir, optimize(ir, "full")[0]):
        assert verify(graph, weights, model, (x, lengths))[0]
        assert torch.equal(execute_ir(graph, (x, lengths), weights=weights)[0], model(x, lengths))


def test_other_values_are_refused(tmp_path: Path) -> None:
    """In a run from the file, and in the generated Python."""
    model, x, lengths = Pieces().eval(), torch.randn(6, 4), torch.tensor([2, 2, 2])
    ir = extract_ir(model, (x, torch.tensor([1, 3, 2])), fixed={"lengths": torch.tensor([1, 3, 2])}, strict=False)
    ir.save(tmp_path / "ir.json")
    with pytest.raises(GuardError, match=r"only for lengths = \[1, 3, 2\], not for \[2, 2, 2\]; capture with fixed="):
        execute_ir(load_ir(tmp_path / "ir.json"), (x, lengths), weights=model.state_dict())
    scope: dict[str, Any] = {}
    exec(to_python(ir), scope)
    with pytest.raises(ValueError, match=r"captured for lengths = \[1, 3, 2\]"):
        scope["Net"]()(x.to("meta"), lengths)


class Writes(nn.Module):
    """Writes recorded values to a tensor that only numbers made."""

    def forward(self, x: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        total = torch.zeros(4, 3)
        total[places] = x
        total[1:] += 1
        order = torch.zeros(4, dtype=torch.long)
        order[places] = 2
        return total + order.unsqueeze(1) + len(order.unique().tolist())


def test_what_is_written_to_is_recorded() -> None:
    model, x, places = Writes().eval(), torch.randn(2, 3), torch.tensor([3, 0])
    ir = extract_ir(model, (x.to("meta"),), fixed={"places": places})
    assert torch.equal(execute_ir(ir, (x, places), weights={})[0], model(x, places))


class Masks(nn.Module):
    def forward(self, x: torch.Tensor, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        mask = (ids == 7).unsqueeze(-1).expand_as(x)
        rows = x[ids == 7]
        torch._check_tensor_all(x > -100, lambda: "too small")
        x[:, 1][ids[:, 1] == 7] = 5.0
        return x.masked_fill(mask, 0.0), rows


def test_masks_and_checks() -> None:
    """A known mask selects rows by index; a check of recorded values becomes an assertion."""
    model, ids = Masks().eval(), torch.tensor([[7, 1, 7], [2, 7, 3]])
    x = torch.randn(2, 3, 4)
    ir = extract_ir(model, (x.to("meta"),), fixed={"ids": ids})
    ours, theirs = execute_ir(ir, (x.clone(), ids), weights={}), model(x.clone(), ids)
    assert all(map(torch.equal, ours, theirs))
    with pytest.raises(Exception, match="too small"):
        execute_ir(ir, (x - 1000, ids), weights={})


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"length": [1]}, "no such argument; did you mean 'lengths'"),
        ({"lengths": torch.empty(3, device="meta")}, "on meta and has no values"),
        ({"lengths": "abc"}, "takes a tensor or nested numbers"),
        ({"x": torch.zeros(5, 4)}, r"has the shape \[5, 4\] of torch.float32, but the example input has \[6, 4\]"),
    ],
)
def test_mistakes(values: dict[str, Any], message: str) -> None:
    with torch.device("meta"):
        model = Pieces().eval()
    with pytest.raises(ExportError, match=message):
        extract_ir(model, (torch.empty(6, 4, device="meta"),), fixed=values)


def test_an_input_that_is_written_to() -> None:
    class Counts(nn.Module):
        def forward(self, x: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
            n.add_(1)
            return x * n.item()

    with pytest.raises(ExportError, match="forward writes to an input whose value is fixed"):
        extract_ir(Counts().eval(), (torch.empty(2, device="meta"),), fixed={"n": torch.tensor(2)})


def test_dynamic_sizes_are_refused() -> None:
    with torch.device("meta"):
        model, x = Pieces().eval(), torch.empty(6, 4)
    with pytest.raises(ExportError, match="take no dynamic_shapes"):
        extract_ir(model, (x,), fixed={"lengths": [6]}, dynamic_shapes=({0: torch.export.Dim.AUTO}, None))


TEXT: dict[str, Any] = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "intermediate_size": 64, "vocab_size": 120, "head_dim": 8, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
    "rope_parameters": {"rope_type": "default", "mrope_section": [1, 1, 2]},
}  # fmt: skip
VISION: dict[str, Any] = {
    "depth": 2, "num_heads": 4, "in_channels": 3, "patch_size": 4, "temporal_patch_size": 2, "spatial_merge_size": 2,
    "hidden_size": 32, "intermediate_size": 64, "out_hidden_size": 32,
}  # fmt: skip
FAMILIES: dict[str, dict[str, Any]] = {
    "Qwen2VL": {"embed_dim": 32},
    "Qwen2_5_VL": {"window_size": 16, "fullatt_block_indexes": [1]},
    "Qwen3VL": {"num_position_embeddings": 16, "deepstack_visual_indexes": [0, 1]},
    "Glm4v": {"image_size": 32},
    "GlmOcr": {"image_size": 32},
}


def vision_language_model(family: str) -> nn.Module:
    config = getattr(transformers, f"{family}Config")(
        text_config=TEXT, vision_config={**VISION, **FAMILIES[family]}, image_token_id=100, video_token_id=101,
        vision_start_token_id=102, vision_end_token_id=103,
    )  # fmt: skip
    torch.manual_seed(0)
    model: nn.Module = getattr(transformers, f"{family}ForConditionalGeneration")(config).eval()
    return model


@pytest.mark.parametrize(
    "family", [pytest.param(name, marks=pytest.mark.slow) if name != "Qwen2_5_VL" else name for name in FAMILIES]
)
def test_vision_language_models(family: str) -> None:
    """The vision tower for a grid of two images, and the whole model for a prompt, equal the model in eager."""
    model = vision_language_model(family)
    patches = torch.randn(int(GRID.prod(-1).sum()), 96)
    tower = model.model.visual
    ir = extract_ir(tower, (patches,), fixed={"grid_thw": GRID}, strict=False)
    assert not any(node.op_type.startswith("opaque.") for node in ir.nodes)
    assert verify(ir, tower.state_dict(), tower, (patches, GRID))[0]

    ids = torch.tensor([[5, 102, *[100] * 4, 103, 6, 102, *[100] * 8, 103, 7, 8]])
    given = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "image_grid_thw": GRID}
    if "mm_token_type_ids" in inspect.signature(model.forward).parameters:
        given["mm_token_type_ids"] = (ids == 100).int()
    rest: dict[str, Any] = {"pixel_values": patches, "use_cache": False}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CaptureWarning)  # the model keeps positions for decoding
        whole = extract_ir(model, (), kwargs={**given, **rest}, fixed=given, strict=False)
    assert not any(node.op_type.startswith("opaque.") for node in whole.nodes)
    assert verify(whole, model.state_dict(), model, (), test_kwargs={**given, **rest})[0]


def test_command_line(tmp_path: Path, programs: Path | None) -> None:
    (tmp_path / "pieces.py").write_text(
        "import torch\n\n\nclass Pieces(torch.nn.Module):\n    def forward(self, x, lengths):\n"
        "        return torch.cat([part + 1 for part in x.split(lengths.tolist())])\n"
    )
    words = ("extract", "pieces.py:Pieces", "--input", "x=f32[6,4]", "-o", "p.json")
    done = command(*words, "--fixed", "lengths=[1,3,2]", folder=tmp_path, programs=programs)
    assert done.returncode == 0, done.stderr
    nodes = json.loads((tmp_path / "p.json").read_text())["nodes"]
    assert [node["op_type"] for node in nodes][:2] == ["torch_ir.fixed_value.default", "aten.split_with_sizes.default"]
    for option, message in (
        ("lengths", "--fixed lengths needs values: --fixed lengths=[[1,4,4]] or --input lengths=@FILE"),
        ("lengths=1x3", "--fixed lengths=1x3: '1x3' are not nested numbers, such as [[1,4,4]]"),
    ):
        done = command(*words, "--input", "lengths=i64[3]", "--fixed", option, folder=tmp_path, programs=programs)
        assert (done.returncode, done.stderr.splitlines()) == (1, [f"torch-ir: error: {message}"])


def test_without_its_guard_a_graph_becomes_onnx(tmp_path: Path) -> None:
    """ONNX has no checks: with the guard, the graph is refused by name."""
    with torch.device("meta"):
        ir = extract_ir(Pieces().eval(), (torch.empty(6, 4),), fixed={"lengths": torch.tensor([1, 3, 2], device="cpu")})
    with pytest.raises(ConversionError, match=r"torch_ir\.fixed_value\.default"):
        to_onnx(ir, tmp_path / "pieces.onnx")
    ir.erase(ir.node("fixed_value"))
    model, x, lengths = Pieces().eval(), torch.randn(6, 4), torch.tensor([1, 3, 2])
    run = compile(ir, model.state_dict(), backend="onnxruntime")
    torch.testing.assert_close(run(x, lengths), model(x, lengths))
