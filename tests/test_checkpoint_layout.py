"""Graphs that read weights as checkpoints of `transformers` store them."""

import json
import random
import warnings
from pathlib import Path

import pytest
import torch

from tests.architectures import Architecture, architectures
from tests.language_models import FIXED_PROMPT, NOT_CARRIED, PROMPT, language_models
from torch_ir import IR, IRExecutor, extract_ir, load_weights, optimize
from torch_ir.cli import main
from torch_ir.errors import ExportError, WeightLoadError, WeightWarning
from torch_ir.llm import checkpoint_weights, extract_llm, generate, to_checkpoint_layout, verify_llm
from torch_ir.llm.generation import Generator, compare_steps, example_prompt
from torch_ir.ops.torch_internals import pytree

# Architectures whose checkpoints have other keys or shapes than the model; all others are stored as they are.
CONVERTED = (
    "deepseek_v2", "deepseek_v3", "dots1", "ernie4_5_moe", "glm4_moe", "hunyuan_v1_moe", "jamba", "lfm2_moe", "minimax",
    "mixtral", "mixtral_batched", "nemotron_h", "nomic_bert", "olmoe", "phimoe", "qwen2_moe", "qwen3_moe", "qwen3_next",
)  # fmt: skip
RENAMED = (
    "altclip", "ast", "beit", "conditional_detr", "deformable_detr", "deit", "depth_anything", "detr", "dinov2",
    "dinov2_with_registers", "dinov3_convnext", "dinov3_vit", "esm", "gpt_neox", "granitemoe", "granitemoehybrid",
    "granitemoeshared", "ijepa", "llava", "mimi", "paligemma", "segformer", "swin", "trocr", "videomae", "vit",
    "vit_mae", "vit_msn", "vivit", "yolos",
)  # fmt: skip
_SAMPLE = random.Random(0).sample(CONVERTED, 3) + random.Random(1).sample(RENAMED, 2)
_ROWS = {each.name: each for each in architectures()}
_STORED_OTHERWISE = [
    pytest.param(_ROWS[name], id=name, marks=() if name in _SAMPLE else pytest.mark.slow)
    for name in (*CONVERTED, *RENAMED)
]


@pytest.mark.parametrize("architecture", _STORED_OTHERWISE)
def test_bound_from_a_saved_checkpoint(architecture: Architecture, tmp_path: Path) -> None:
    """A checkpoint that transformers writes gives the results of the model's own weights, to the bit."""
    model = architecture.build()
    inputs = architecture.inputs()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about the capture, which other tests look at
        ir = extract_ir(model, (), kwargs=inputs, strict=False)
    stored = IR.from_json(to_checkpoint_layout(ir, model).to_json())
    has_stacks = any(param.param and param.param.kind == "stack" for param in stored.params)
    assert (len(stored.nodes) > len(ir.nodes) or has_stacks) == (architecture.name in CONVERTED)
    model.save_pretrained(tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", WeightWarning)  # of weights that this call of the model does not read
        theirs = _flat(IRExecutor(stored, load_weights(tmp_path))(**inputs))
        ours = _flat(IRExecutor(ir, model.state_dict())(**inputs))
    assert len(theirs) == len(ours) > 0
    assert all(torch.equal(one, other) for one, other in zip(theirs, ours, strict=True))


@pytest.mark.slow
def test_every_other_architecture_is_stored_as_it_is() -> None:
    """The lists above are complete: no conversion fails, and none is without effect."""
    from torch_ir.llm.checkpoint_layout import Layout

    for architecture in architectures():
        layout = Layout.of(architecture.build())
        kind = "plain" if layout.is_plain else "converted" if layout.converted else "renamed"
        name = architecture.name
        assert kind == ("converted" if name in CONVERTED else "renamed" if name in RENAMED else "plain"), name


@pytest.fixture(scope="module")
def mixtral():
    model = _ROWS["mixtral"].build()
    return model, IR.from_json(extract_llm(model).to_json())


def test_prefill_and_decode_read_the_checkpoint(mixtral, tmp_path: Path) -> None:
    """Both graphs of a mixture of experts generate what the model generates, from the files of a checkpoint."""
    model, ir = mixtral
    prompt = torch.randint(3, 50, (2, 5))
    model.save_pretrained(tmp_path, max_shard_size="20kB")
    weights = load_weights(tmp_path)
    assert any("experts.3.w1" in key for key in weights)
    tokens = generate(ir, weights, 6, input_ids=prompt)
    own = model.generate(input_ids=prompt, max_new_tokens=6, do_sample=False, eos_token_id=None, pad_token_id=0)
    assert torch.equal(tokens, own[:, 5:])
    assert verify_llm(ir, model, 3, input_ids=prompt)[0]
    assert verify_llm(extract_llm(model, weight_layout="model"), model, 3, input_ids=prompt)[0]


_GENERATING = [each for each in language_models() if each.kind in ("causal", "moe") and each.name not in NOT_CARRIED]
_FOLDERS = random.Random(5).sample([each.name for each in _GENERATING], 2)


@pytest.mark.parametrize(
    "architecture",
    [pytest.param(each, id=each.name, marks=() if each.name in _FOLDERS else pytest.mark.slow) for each in _GENERATING],
)
def test_tokens_from_a_saved_folder(architecture: Architecture, tmp_path: Path) -> None:
    """Every causal and mixture-of-experts model generates its own tokens from the folder that transformers writes."""
    model = architecture.build()
    ir = extract_llm(model, prompt=PROMPT if architecture.name in FIXED_PROMPT else None)
    model.save_pretrained(tmp_path)
    torch.manual_seed(0)
    inputs = example_prompt(ir, PROMPT)
    is_valid, told = compare_steps(Generator(ir, load_weights(tmp_path)), model, 6, inputs)
    assert is_valid, told


def test_an_optimised_graph_reads_the_checkpoint(mixtral) -> None:
    """Conversion nodes are ordinary nodes over weights: passes keep their meaning."""
    model, ir = mixtral
    better, _ = optimize(ir, "basic")
    prompt = torch.randint(3, 50, (1, 4))
    weights = checkpoint_weights(model)
    expected = IRExecutor(ir, weights)(input_ids=prompt)["logits"]
    torch.testing.assert_close(IRExecutor(better, weights)(input_ids=prompt)["logits"], expected)


def test_layers_as_functions_read_the_checkpoint() -> None:
    """The experts of each layer are stacked before the calls of the layer's function."""
    model = _ROWS["mixtral"].build()
    ir = extract_llm(model, blocks="function")
    assert [node.op_type for node in ir.nodes if node.is_call]
    assert verify_llm(ir, model, 3, input_ids=torch.randint(3, 50, (1, 4)))[0]


def test_weights_of_the_model_do_not_bind(mixtral) -> None:
    """The error names a key of the checkpoint and the nearest key that was given."""
    model, ir = mixtral
    with pytest.raises(WeightLoadError, match=r"block_sparse_moe\.gate\.weight' is missing; did you mean '.*mlp\.gate"):
        IRExecutor(ir, model.state_dict())


def test_a_wrong_layout_is_rejected() -> None:
    with pytest.raises(ExportError, match="unknown weight_layout 'hub'; expected one of checkpoint, model"):
        extract_llm(_ROWS["llama"].build(), weight_layout="hub")


def test_a_plain_model_keeps_its_graph() -> None:
    model = _ROWS["llama"].build()
    assert extract_llm(model).to_json() == extract_llm(model, weight_layout="model").to_json()


def test_the_command_compares_headers(mixtral, tmp_path: Path, capsys) -> None:
    """A checkpoint in shards fits; the model's own state dict does not, with counts by kind."""
    model, ir = mixtral
    ir.save(tmp_path / "graph.json")
    model.save_pretrained(tmp_path / "sharded", max_shard_size="20kB")
    torch.save(model.state_dict(), tmp_path / "own.pt")
    index = tmp_path / "sharded" / "model.safetensors.index.json"
    assert main(["weights", "check", str(tmp_path / "graph.json"), str(index)]) == 0
    assert "the checkpoint fits the graph" in capsys.readouterr().out
    assert main(["weights", "check", str(tmp_path / "graph.json"), str(tmp_path / "own.pt"), "--json"]) == 1
    record = json.loads(capsys.readouterr().out)
    assert not record["fits"]
    assert {problem["kind"] for problem in record["problems"]} == {"missing", "unexpected"}


def test_the_command_names_other_shapes_and_dtypes(tmp_path: Path, capsys) -> None:
    """Shapes and dtypes are compared without reading a tensor, also in pickled files and their index."""
    model = torch.nn.Linear(3, 2)
    extract_ir(model.eval(), (torch.randn(1, 3),), strict=False).save(tmp_path / "graph.json")
    torch.save({"weight": torch.zeros(3, 2)}, tmp_path / "pytorch_model-1.bin")
    torch.save({"bias": torch.zeros(2, dtype=torch.float16)}, tmp_path / "pytorch_model-2.bin")
    placed = {"weight": "pytorch_model-1.bin", "bias": "pytorch_model-2.bin"}
    (tmp_path / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": placed}))
    assert main(["weights", "check", str(tmp_path / "graph.json"), str(tmp_path)]) == 1
    told = capsys.readouterr().out
    assert "'weight' has shape [3, 2], the graph needs [2, 3]" in told
    assert "'bias' is float16, the graph needs float32" in told


def _flat(outputs: object) -> list[torch.Tensor]:
    leaves = pytree.tree_leaves(outputs)
    return [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
