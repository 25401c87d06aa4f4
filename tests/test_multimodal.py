"""Models of images, videos and sound: encoders, projectors, prefill and decode in one file."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlavaConfig

from tests.command_line import command
from tests.multimodal_models import build, cases, expectation, inputs, kinds, outcome
from torch_ir import IR, ExecutionError, ExportError, GuardError, load_weights, meta_init, optimize
from torch_ir.llm import cache_map, checkpoint_weights, entry_map, extract_llm, generate, prompt_positions, verify_llm

TOKENS = 6


def carried(name: str, **options: Any) -> tuple[Any, dict[str, Any], IR]:
    """Return a tiny model with weights, its inputs, and the graphs of the same model without weights."""
    case = next(each for each in cases(name.split()[0]) if each.name == name)
    model = build(case)
    given = inputs(case, model)
    with meta_init():
        bare = type(model)(model.config)
    return model, given, extract_llm(bare, inputs=given, **options)


@pytest.fixture(scope="module")
def llava() -> tuple[Any, dict[str, Any], IR]:
    return carried("llava image")


def test_entry_points(llava: tuple[Any, dict[str, Any], IR]) -> None:
    """Encoder, projector, prefill and decode; the map in the file says which outputs are whose inputs."""
    model, _, ir = llava
    assert list(ir.functions) == ["decode", "encode_image", "project_image"]
    assert [(tensor.name, tensor.shape) for tensor in ir.graph_inputs] == [
        ("input_ids", (2, "seq")),
        ("image_pooler_output_0", (16, 32)),
        ("image_pooler_output_1", (16, 32)),
    ]
    assert [tensor.name for tensor in ir.functions["encode_image"].graph_inputs] == ["pixel_values"]
    edges = [(edge.source, edge.target, edge.argument, edge.place) for edge in entry_map(ir)]
    assert edges[:4] == [
        ("encode_image", "project_image", "image", "hidden.0"),
        ("project_image", "prefill", "image", "pooler_output.0"),
        ("project_image", "prefill", "image", "pooler_output.1"),
        ("prefill", "decode", "cache", "layers.0.key"),
    ]
    stored = json.loads(ir.to_json())["extensions"]["entry_points"]
    assert stored["edges"] == [
        {"from": source, "to": target, "argument": argument, "place": place}
        for source, target, argument, place in edges
    ]
    assert list(stored["graphs"]) == ["encode_image", "project_image", "prefill", "decode"]
    read = {name: _keys(graph) for name, graph in {"prefill": ir, **ir.functions}.items()}
    assert read["decode"] == {key for key in checkpoint_weights(model) if key.startswith("language")}
    assert read["prefill"] == set.union(*read.values())  # the table of the file
    assert {key.split(".")[0] for key in read["encode_image"]} == {"vision_tower"}
    assert {key.split(".")[0] for key in read["project_image"]} == {"multi_modal_projector"}


def _keys(ir: IR) -> set[str]:
    return {key for each in ir.params if each.param and each.param.in_state_dict for key in each.param.keys}


def test_tokens(llava: tuple[Any, dict[str, Any], IR], tmp_path: Path, programs: Path | None) -> None:
    """From the file, from the optimised graphs, and from a checkpoint, the tokens are those of the model."""
    model, given, ir = llava
    model.save_pretrained(tmp_path / "checkpoint")
    ir.save(tmp_path / "llava.json")
    for graph in (IR.load(tmp_path / "llava.json"), optimize(ir, "full")[0]):
        is_valid, told = verify_llm(graph, model, TOKENS, **given)
        assert is_valid, told
    with torch.no_grad():
        own = model.generate(**given, max_new_tokens=TOKENS, do_sample=False, pad_token_id=0, eos_token_id=None)
    done = command("weights", "check", "llava.json", "checkpoint", folder=tmp_path, programs=programs)
    assert "the checkpoint fits" in done.stdout
    weights = load_weights(tmp_path / "checkpoint")
    assert torch.equal(generate(ir, weights, TOKENS, **given), own[:, given["input_ids"].shape[1] :])


def test_other_prompts(llava: tuple[Any, dict[str, Any], IR]) -> None:
    """The length of the prompt and the place of the image vary; a prompt with too few image tokens is refused."""
    model, given, ir = llava
    more = torch.cat([torch.randint(3, 90, (2, 5)), given["input_ids"]], dim=1)
    is_valid, told = verify_llm(ir, model, TOKENS, **{**given, "input_ids": more})
    assert is_valid, told
    with pytest.raises(ExecutionError, match="the prompt has not as many tokens for image features as there are"):
        generate(ir, checkpoint_weights(model), 2, **{**given, "input_ids": torch.randint(3, 90, (2, 9))})
    with pytest.raises(ExecutionError, match="the image encoder also needs pixel_values"):
        generate(ir, checkpoint_weights(model), 2, input_ids=more)
    mask = torch.ones_like(more)
    assert verify_llm(ir, model, 2, **{**given, "input_ids": more, "attention_mask": mask})[0]
    mask[0, 0] = 0
    with pytest.raises(ExecutionError, match="extract the model with padding=True"):
        generate(ir, checkpoint_weights(model), 2, **{**given, "input_ids": more, "attention_mask": mask})


def test_positions_and_sizes_of_images() -> None:
    """Qwen2-VL: the encoder is for one grid of patches; positions are inputs, which the model computes on meta, too."""
    model, given, ir = carried("qwen2_vl image", prompt=11)
    is_valid, told = verify_llm(IR.from_json(ir.to_json()), model, TOKENS, **given)
    assert is_valid, told
    assert [tensor.shape for tensor in ir.graph_inputs if tensor.name == "position_ids"] == [(4, 2, 11)]
    with meta_init():
        bare = type(model)(model.config)
    positions = prompt_positions(bare, given)
    with torch.no_grad():
        own = model.generate(**given, max_new_tokens=TOKENS, do_sample=False, pad_token_id=0, eos_token_id=None)
    found = generate(ir, checkpoint_weights(model), TOKENS, **given, position_ids=positions)
    assert torch.equal(found, own[:, given["input_ids"].shape[1] :])
    with pytest.raises(ExecutionError, match=r"pass position_ids; torch_ir.llm.prompt_positions"):
        generate(ir, checkpoint_weights(model), TOKENS, **given)
    other = {**given, "image_grid_thw": torch.tensor([[1, 2, 8], [1, 4, 4]])}
    with pytest.raises(GuardError, match="image_grid_thw"):
        generate(ir, checkpoint_weights(model), TOKENS, **other, position_ids=positions)


def test_sound_and_forms() -> None:
    """Voxtral, whose forward calls its encoder itself, with a cache of fixed length and layers as functions."""
    model, given, ir = carried("voxtral audio", prompt=12, cache_length=40, blocks="function")
    assert set(ir.functions) >= {"encode_audio", "project_audio", "decode"}
    is_valid, told = verify_llm(IR.from_json(ir.to_json()), model, TOKENS, **given)
    assert is_valid, told
    assert "input_features" not in [tensor.name for tensor in ir.graph_inputs]


def test_padded_prompts(llava: tuple[Any, dict[str, Any], IR]) -> None:
    model, given, _ = llava
    padded = torch.cat([torch.zeros(2, 2, dtype=torch.int64), given["input_ids"]], dim=1)
    mask = torch.ones_like(padded)
    mask[0, :2] = 0
    with meta_init():
        bare = type(model)(model.config)
    ir = extract_llm(bare, inputs={**given, "input_ids": padded, "attention_mask": mask}, padding=True, prompt=25)
    is_valid, told = verify_llm(ir, model, TOKENS, **{**given, "input_ids": padded, "attention_mask": mask})
    assert is_valid, told


def test_prefill_is_recorded_fast(caplog: pytest.LogCaptureFixture) -> None:
    """The model's own check of the number of tokens reads values; it is replaced, so torch.export is not needed."""
    with caplog.at_level("INFO", logger="torch_ir.capture"):
        _, _, ir = carried("paligemma image")
    assert "is not recorded fast" not in caplog.text
    assert any("_assert_async" in node.op_type for node in ir.nodes)


def test_an_encoder_in_forward() -> None:
    """Qwen2-Audio has no function that encodes: prefill takes the sound itself."""
    model, given, ir = carried("qwen2_audio audio")
    assert list(ir.functions) == ["decode"]
    assert [tensor.name for tensor in ir.graph_inputs] == ["input_ids", "input_features", "feature_attention_mask"]
    is_valid, told = verify_llm(IR.from_json(ir.to_json()), model, TOKENS, **given)
    assert is_valid, told


def test_an_encoder_decoder() -> None:
    """Florence-2: prefill runs the encoder over text and image, and the first token of the decoder."""
    model, given, ir = carried("florence2 image")
    assert {tensor.name for tensor in ir.graph_inputs} == {"input_ids", "pixel_values", "decoder_input_ids"}
    is_valid, told = verify_llm(IR.from_json(ir.to_json()), model, TOKENS, **given)
    assert is_valid, told
    with pytest.raises(ExecutionError, match="the prompt has not as many tokens for image features as there are"):
        generate(ir, checkpoint_weights(model), 2, **{**given, "input_ids": torch.full_like(given["input_ids"], 5)})
    with pytest.raises(ExportError, match="forward of Florence2ForConditionalGeneration does not take bbox"):
        extract_llm(model, inputs={**given, "bbox": torch.zeros(2, 4)})
    with pytest.raises(ExportError, match="the inputs have different batches: 1, 2"):
        extract_llm(model, inputs={**given, "input_ids": given["input_ids"][:1]})


def test_layers_that_attend_to_the_image() -> None:
    """Mllama: their keys are part of the cache, which decode does not change; each token has the last row of a mask."""
    model, given, ir = carried("mllama image")
    given["cross_attention_mask"][:, :3] = 0  # words before the image do not see it
    is_valid, told = verify_llm(IR.from_json(ir.to_json()), model, TOKENS, **given)
    assert is_valid, told
    changed = {tensor.name: tensor.decode_output is not None for tensor in cache_map(ir) if tensor.layer < 2}
    assert changed == {
        "layers.0.key": True, "layers.0.value": True, "layers.1.key": False, "layers.1.value": False,
    }  # fmt: skip


@pytest.mark.filterwarnings("ignore:prefill and decode of Blip2")
def test_a_language_model_that_decodes_alone() -> None:
    """BLIP-2 encodes, and then calls `generate` of its language model, which is what decode runs."""
    model, given, ir = carried("blip-2 image")
    assert {key.split(".")[0] for key in _keys(ir.functions["decode"])} == {"language_model"}
    is_valid, told = verify_llm(IR.from_json(ir.to_json()), model, TOKENS, **given)
    assert is_valid, told
    with pytest.raises(ExportError, match="BlipTextLMHeadModel of BlipForConditionalGeneration attends to the image"):
        carried("blip image")


def test_refused() -> None:
    with pytest.raises(ExportError, match="have no input_ids; pass what its processor returns"):
        extract_llm(LlavaConfig(), inputs={"pixel_values": torch.empty(1, 3, 8, 8)})
    ids = torch.ones(1, 4, dtype=torch.int64)
    with pytest.raises(ExportError, match="neither forward nor an encoder of LlamaForCausalLM takes pixel_values"):
        extract_llm(
            LlamaConfig(hidden_size=8, num_hidden_layers=1, num_attention_heads=1, intermediate_size=8, vocab_size=9),
            inputs={"input_ids": ids, "pixel_values": torch.empty(1, 3, 8, 8)},
        )


def test_command_line(tmp_path: Path, llava: tuple[Any, dict[str, Any], IR], programs: Path | None) -> None:
    """The inputs of a processor come from a file; --verify generates with them; the table lists the encoders."""
    model, given, _ = llava
    model.config.save_pretrained(tmp_path / "model")
    np.savez(tmp_path / "given.npz", **{name: value.numpy() for name, value in given.items()})
    words = ("llm", "model", "-o", "a.json", "--input", "@given.npz", "--verify", "3")
    done = command(*words, folder=tmp_path, programs=programs)
    assert done.returncode == 0, done.stderr
    assert "encode_image: " in done.stdout
    assert "project_image: " in done.stdout
    assert "verification PASSED: 3 tokens" in done.stdout


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:prefill and decode of .* were not checked on a tiny model:UserWarning")
@pytest.mark.parametrize("kind", kinds())
def test_every_model(kind: str) -> None:
    """All of them generate the tokens of the model, but for those that are named."""
    every = cases(kind)
    assert {case.name: outcome(case) for case in every} == {case.name: expectation(case) for case in every}
