"""Several modules in one file: two-tower models, hand-built pipelines, and the map between their entry points."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import ClapConfig, ClapModel, CLIPConfig, CLIPModel, SiglipConfig, SiglipModel

from torch_ir import IR, ExecutionError, ExportError, GraphError, meta_init
from torch_ir.entries import (
    Entry,
    Feed,
    bind_entries,
    extract_entries,
    extract_pipeline,
    feeds_of,
    pipeline_weights,
    run_entries,
    run_pipeline,
)

TOWER = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
CLIP = CLIPConfig(
    text_config={**TOWER, "vocab_size": 99, "max_position_embeddings": 16, "eos_token_id": 98},
    vision_config={**TOWER, "image_size": 32, "patch_size": 8},
    projection_dim=16,
)


class Scores(nn.Module):
    """The product of both towers."""

    def forward(self, text: Tensor, image: Tensor) -> Tensor:
        return (text / text.norm(dim=-1, keepdim=True)) @ (image / image.norm(dim=-1, keepdim=True)).T


@pytest.fixture(scope="module")
def towers() -> IR:
    with meta_init():
        clip = CLIPModel(CLIP).eval()
    entries = {
        "text": Entry("clip.get_text_features", {"input_ids": torch.zeros(2, 7, dtype=torch.int64, device="meta")}),
        "image": Entry("clip.get_image_features", {"pixel_values": torch.empty(3, 3, 32, 32, device="meta")}),
        "scores": Entry(
            "scores", {"text": torch.empty(2, 16, device="meta"), "image": torch.empty(3, 16, device="meta")}
        ),
    }
    feeds = {"scores.text": "text.pooler_output", "scores.image": "image.pooler_output"}
    modules = {"clip": clip, "scores": Scores().eval()}
    return IR.from_json(extract_entries(modules, entries, feeds=feeds).to_json())


def test_two_towers_in_one_file(towers: IR) -> None:
    """Each tower is an entry point, and the map leads to the scores of the model itself."""
    assert list(towers.functions) == ["image", "scores"]
    assert feeds_of(towers) == [
        Feed("text", "pooler_output", "scores", "text"),
        Feed("image", "pooler_output", "scores", "image"),
    ]
    torch.manual_seed(0)
    model = CLIPModel(CLIP).eval()
    ids, pixels = torch.randint(3, 98, (2, 7)), torch.randn(3, 3, 32, 32)
    ids[:, -1] = 98
    weights = {f"clip.{key}": value for key, value in model.state_dict().items()}
    found = run_entries(towers, weights, {"text": {"input_ids": ids}, "image": {"pixel_values": pixels}})
    with torch.no_grad():
        own = model(input_ids=ids, pixel_values=pixels)
    torch.testing.assert_close(found["scores"], own.logits_per_text / model.logit_scale.exp())


def siglip() -> tuple[nn.Module, str, dict[str, Tensor]]:
    text = {**TOWER, "vocab_size": 99, "max_position_embeddings": 16}
    config = SiglipConfig(text_config=text, vision_config={**TOWER, "image_size": 32, "patch_size": 8})
    return SiglipModel(config), "image", {"pixel_values": torch.randn(2, 3, 32, 32)}


def clap() -> tuple[nn.Module, str, dict[str, Tensor]]:
    audio = {
        "hidden_size": 32, "patch_embeds_hidden_size": 16, "depths": [1, 1], "num_attention_heads": [2, 2],
        "spec_size": 64, "num_mel_bins": 16, "window_size": 4, "patch_size": 4, "patch_stride": 4, "num_classes": 3,
    }  # fmt: skip
    text = {**TOWER, "vocab_size": 99, "max_position_embeddings": 20}
    config = ClapConfig(text_config=text, audio_config=audio, projection_dim=16)
    return ClapModel(config), "audio", {"input_features": torch.randn(2, 1, 64, 16)}


@pytest.mark.parametrize("make", [siglip, clap])
def test_towers_of_one_model(make: Any) -> None:
    """The entries are methods of the model, and their results those of the model."""
    torch.manual_seed(0)
    model, modality, given = make()
    model.eval()
    inputs = {"text": {"input_ids": torch.randint(3, 99, (2, 8))}, modality: given}
    entries = {name: Entry(f"get_{name}_features", each) for name, each in inputs.items()}
    found = run_entries(IR.from_json(extract_entries(model, entries).to_json()), model.state_dict(), inputs)
    for name, each in inputs.items():
        with torch.no_grad():
            own = getattr(model, f"get_{name}_features")(**each)
        torch.testing.assert_close(found[name].pooler_output, own.pooler_output)


def test_the_weights_are_in_the_file_once() -> None:
    """Entries that share modules share weights; the graph itself lists those of all."""

    class Shared(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(5, 4)
            self.head = nn.Linear(4, 4)

        def embed(self, ids: Tensor) -> Tensor:
            return self.table(ids)

        def score(self, hidden: Tensor) -> Tensor:
            return self.head(hidden) @ self.table.weight.T

    model = Shared().eval()
    ids = torch.tensor([[1, 2]])
    ir = extract_entries(
        model,
        {"embed": Entry("embed", {"ids": ids}), "score": Entry("score", {"hidden": torch.empty(1, 2, 4)})},
        feeds={"score.hidden": "embed"},
    )
    assert sorted(str(param.key) for param in ir.params) == ["head.bias", "head.weight", "table.weight"]
    found = run_entries(IR.from_json(ir.to_json()), model.state_dict(), {"embed": {"ids": ids}})
    assert torch.equal(found["score"], model.score(model.embed(ids)))


def two(feeds: dict[str, str], width: int = 4) -> IR:
    entries = {
        "first": Entry("a", {"input": torch.empty(2, 3)}),
        "second": Entry("b", {"input": torch.empty(2, width)}),
    }
    return extract_entries({"a": nn.Linear(3, 4).eval(), "b": nn.Linear(width, 2).eval()}, entries, feeds=feeds)


@pytest.mark.parametrize(
    ("feeds", "width", "message"),
    [
        ({"second.input": "frist"}, 4, "there is no entry point 'frist'; did you mean 'first'"),
        ({"second.inputs": "first"}, 4, "'second' has no input 'inputs'; did you mean 'input'"),
        ({"second.input": "first.hidden"}, 4, "'first' has no output 'hidden'"),
        ({"second.input": "first"}, 5, r"first.output is float32\[2, 4\], but second.input is float32\[2, 5\]"),
    ],
)
def test_a_map_that_does_not_fit(feeds: dict[str, str], width: int, message: str) -> None:
    with pytest.raises(ExportError, match=message):
        two(feeds, width)


@pytest.mark.parametrize(
    ("edges", "message"),
    [
        ([{"from": "first"}], "edge 0 of entry_points must have the strings from, to, argument, place"),
        ([7], "edge 0 of entry_points must have the strings"),
        ([{"from": "x", "to": "first", "argument": "input", "place": "output"}], "there is no entry point 'x'"),
        ("first -> second", "the edges of entry_points must be a list, not 'first -> second'"),
    ],
)
def test_a_map_in_a_file_is_checked(edges: Any, message: str) -> None:
    ir = two({})
    ir.extensions["entry_points"]["edges"] = edges
    with pytest.raises(GraphError, match=message):
        feeds_of(IR.from_json(ir.to_json()))


def test_a_name_of_any_length_is_refused_in_one_line() -> None:
    ir = two({})
    edge = {"from": "x" * 10_000, "to": "first", "argument": "input", "place": "output"}
    ir.extensions["entry_points"]["edges"] = [edge]
    with pytest.raises(GraphError) as caught:
        feeds_of(ir)
    assert len(str(caught.value)) < 200


def test_an_input_has_one_value() -> None:
    """What another entry point returns is not silently preferred to what the caller gives, or to a second edge."""
    ir = two({"second.input": "first"})
    weights = {key: torch.zeros(tensor.shape) for tensor in ir.params if (key := tensor.key)}
    first = {"input": torch.zeros(2, 3)}
    with pytest.raises(ExecutionError, match=r"second\.input has another value than first\.output"):
        run_entries(ir, weights, {"first": first, "second": {"input": torch.zeros(2, 4)}})
    with pytest.raises(ExecutionError, match="the inputs of first must be a dict by name, not Tensor"):
        run_entries(ir, weights, {"first": torch.zeros(2, 3)})  # type: ignore[dict-item]
    ir.extensions["entry_points"]["edges"] *= 2
    with pytest.raises(ExecutionError, match=r"second\.input has another value than first\.output"):
        run_entries(ir, weights, {"first": first})


def test_outputs_with_digits_as_names() -> None:
    class Numbered(nn.Module):
        def forward(self, x: Tensor) -> dict[str, Tensor]:
            return {"1": x + 1, "0": x + 2}

    entries = {"first": Entry("a", {"x": torch.zeros(3)}), "second": Entry("b", {"x": torch.zeros(3)})}
    modules = {"a": Numbered().eval(), "b": Numbered().eval()}
    ir = extract_entries(modules, entries, feeds={"second.x": "first.0"})
    found = run_entries(ir, {}, {"first": {"x": torch.zeros(3)}})
    assert found["second"]["1"].tolist() == [3.0, 3.0, 3.0]


def test_mistakes() -> None:
    with pytest.raises(ExportError, match="there is no 'c' to call"):
        extract_entries({"a": nn.Linear(3, 4)}, {"first": Entry("c", {})})
    with pytest.raises(ExportError, match="no entries were given"):
        extract_entries(nn.Linear(3, 4), {})
    ir = two({"second.input": "first"})
    with pytest.raises(ExecutionError, match="there is no entry point 'third'; the file has first, second"):
        run_entries(ir, {}, {"third": {}})
    del ir.extensions["entry_points"]
    with pytest.raises(GraphError, match="has no map of entry points; make such a graph with"):
        bind_entries(ir, {})
    loop = two({})
    loop.extensions["entry_points"]["edges"] = [
        {"from": "second", "to": "second", "argument": "input", "place": "output", "direct": False}
    ]
    with pytest.raises(ExecutionError, match="code between second and second is not in the file; call bind_entries"):
        run_entries(loop, {}, {})


# -- pipelines --------------------------------------------------------------------------------------------------------


class Coder(nn.Module):
    """As the VAE of a pipeline: methods, not forward."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(4, 3, 3, padding=1)

    def decode(self, z: Tensor, return_dict: bool = True, generator: Any = None) -> tuple[Tensor]:
        return (self.conv(z),)


class Denoiser(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(4, 4, 3, padding=1)
        self.condition = nn.Linear(8, 4)

    def forward(self, sample: Tensor, timestep: Tensor, text: Tensor) -> Tensor:
        return self.conv(sample) * timestep + self.condition(text)[..., None, None]


class Pipeline:
    """The shape of a diffusers pipeline: named components, and a call that runs a loop in Python."""

    def __init__(self) -> None:
        self.components = {"text": nn.Embedding(9, 8), "denoiser": Denoiser(), "vae": Coder(), "steps": 3}

    @property
    def _execution_device(self) -> torch.device:
        return next(self.components["denoiser"].parameters()).device

    def __call__(self, token: int, generator: torch.Generator | None = None) -> Tensor:
        device = self._execution_device
        text = self.components["text"](torch.tensor([token], device=device))
        latents = torch.randn(1, 4, 8, 8, generator=generator, device=device)
        for step in torch.linspace(1, 0, self.components["steps"], device=device):
            latents = latents - 0.1 * self.components["denoiser"](latents, step, text=text)
        return self.components["vae"].decode(latents * 2, return_dict=False, generator=generator)[0]


def test_a_pipeline() -> None:
    """From components on meta to a file, and the pipeline's own result through that file."""
    with meta_init():
        bare = Pipeline()
    ir = IR.from_json(extract_pipeline(bare, token=3).to_json())
    assert list(ir.extensions["entry_points"]["graphs"]) == ["text", "denoiser", "vae_decode"]
    assert set(feeds_of(ir)) == {
        Feed("text", "output", "denoiser", "text"),
        Feed("denoiser", "output", "denoiser", "sample", is_direct=False),
        Feed("denoiser", "output", "vae_decode", "z", is_direct=False),
    }
    assert type(bare) is Pipeline
    torch.manual_seed(0)
    pipeline = Pipeline()
    own = pipeline(5, torch.Generator().manual_seed(1))
    assert torch.equal(run_pipeline(pipeline, ir, token=5, generator=torch.Generator().manual_seed(1)), own)
    weights = pipeline_weights(pipeline)
    assert torch.equal(run_pipeline(bare, ir, weights, token=5, generator=torch.Generator().manual_seed(1)), own)


def test_a_pipeline_that_calls_something_else() -> None:
    """A component without an entry point, or none at all, is one sentence."""
    with meta_init():
        bare = Pipeline()
    ir = extract_pipeline(bare, token=3)
    del ir.functions["vae_decode"], ir.extensions["entry_points"]["graphs"]["vae_decode"]
    ir.extensions["entry_points"]["edges"] = []
    pipeline = Pipeline()
    with pytest.raises(ExecutionError, match="the file has no entry point 'vae_decode', which the pipeline calls"):
        run_pipeline(pipeline, ir, token=5)
    pipeline.components = {}
    with pytest.raises(ExportError, match="Pipeline has no components that are modules of torch"):
        extract_pipeline(pipeline, token=3)
