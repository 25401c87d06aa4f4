"""Language models: prefill and decode as two graphs with the cache as inputs and outputs, and their tokens."""

import copy
import json
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from transformers import AutoConfig
from transformers.cache_utils import LinearAttentionLayer

from tests.architectures import Architecture, architectures
from tests.language_models import NOT_CARRIED, OTHER_CONSTRAINTS, carry, compare, language_models
from torch_ir import IR, ExecutionError, ExportError, GraphError, IRExecutor, extract_ir, meta_init
from torch_ir.cli.dispatch import main
from torch_ir.errors import MissingExtraError
from torch_ir.llm import cache_map, caches, extract_llm, generate, verify_llm
from torch_ir.llm.generation import example_prompt

TOKENS = 8
BY_NAME = {each.name: each for each in architectures()}


def build(name: str) -> Any:
    return BY_NAME[name].build()


def carried(model: Any, **options: Any) -> IR:
    """Return the graphs of a model, built without weights, as a reader of the file gets them."""
    with meta_init():
        bare = type(model)(model.config)
    return IR.from_json(extract_llm(bare, **options).to_json())


def prove(model: Any, tokens: int = TOKENS, **options: Any) -> IR:
    """Return the graphs of a model, after checking that they generate its tokens."""
    ir = carried(model, **options)
    torch.manual_seed(0)
    is_valid, told = verify_llm(ir, model, tokens, **example_prompt(ir, 6))
    assert is_valid, told
    return ir


@pytest.fixture(scope="module")
def llama() -> Any:
    return build("llama")


@pytest.fixture(scope="module")
def graphs(llama: Any) -> IR:
    return carried(llama)


# -- the two graphs ---------------------------------------------------------------------------------------------------


def test_prefill_is_the_graph_and_decode_its_function(graphs: IR) -> None:
    """Prefill takes a prompt; decode takes one token and the cache; sizes have names and ranges."""
    assert [(tensor.name, tensor.shape) for tensor in graphs.graph_inputs] == [("input_ids", ("batch", "seq"))]
    assert graphs.symbols["seq"].range == "2 <= seq <= 63"
    decode = graphs.functions["decode"]
    assert [(tensor.name, tensor.shape) for tensor in decode.graph_inputs[:2]] == [
        ("input_ids", ("batch", 1)),
        ("cache_layers_0_key", ("batch", 2, "past", 8)),
    ]
    assert decode.symbols["past"].range == "0 <= past <= 63"
    assert [tensor.shape for tensor in decode.graph_outputs] == [
        ("batch", 1, 99),
        *[("batch", 2, "past + 1", 8)] * 4,
    ]


def test_weights_have_the_keys_of_the_checkpoint(graphs: IR, llama: Any) -> None:
    """Both graphs read weights by the model's own keys, and nothing else."""
    for ir in (graphs, graphs.functions["decode"]):
        keys = {key for tensor in ir.params if tensor.param and tensor.param.in_state_dict for key in tensor.param.keys}
        assert keys == set(llama.state_dict())


def test_the_file_has_one_table_of_weights(graphs: IR) -> None:
    """Weights that decode shares are written once, with prefill, and restored on load."""
    document = json.loads(graphs.to_json())
    decode = document["functions"]["decode"]
    assert decode["weights"] == []
    assert decode["shared_weights"] == [tensor.name for tensor in graphs.functions["decode"].params]
    assert IR.from_json(graphs.to_json()).to_json() == graphs.to_json()


def test_nodes_say_which_module_of_the_model_they_are(graphs: IR) -> None:
    node = next(node for node in graphs.functions["decode"].nodes if node.op_type == "aten.linear.default")
    assert node.origin.module == "model.layers.0.self_attn.q_proj"


def test_the_map_of_the_cache(graphs: IR) -> None:
    """Every tensor of the cache: which output of prefill, which input and output of decode, its shape and bytes."""
    first, *_, last = cache_map(graphs)
    decode = graphs.functions["decode"]
    assert (first.name, first.layer, first.shape, first.dtype) == (
        "layers.0.key",
        0,
        ("batch", 2, "past", 8),
        "float32",
    )
    assert first.bytes == "64 * batch * past"
    assert (last.name, last.layer) == ("layers.1.value", 1)
    assert [tensor.prefill_output for tensor in cache_map(graphs)] == [out.name for out in graphs.graph_outputs[1:]]
    assert [tensor.decode_input for tensor in cache_map(graphs)] == [given.name for given in decode.graph_inputs[1:]]
    assert [tensor.decode_output for tensor in cache_map(graphs)] == [out.name for out in decode.graph_outputs[1:]]
    json.dumps([asdict(tensor) for tensor in cache_map(graphs)])


def test_a_graph_without_decode_has_no_map() -> None:
    with torch.device("meta"):
        ir = extract_ir(nn.Linear(2, 2).eval(), (torch.empty(1, 2),))
    with pytest.raises(GraphError, match="has no function 'decode'; make such a graph with"):
        cache_map(ir)


# -- what they generate -----------------------------------------------------------------------------------------------


# dense, with a mixture of experts, with an encoder, recurrent; the sweep below has them all
@pytest.mark.parametrize("name", ["llama", "deepseek_v3", "t5", "lfm2"])
def test_the_graphs_generate_what_the_model_generates(name: str) -> None:
    """Greedy tokens are the same and logits close, at sizes that were not traced, through windows and experts."""
    prove(build(name))


@pytest.mark.slow
@pytest.mark.parametrize("architecture", language_models(), ids=lambda each: each.name)
def test_every_language_model(architecture: Architecture) -> None:
    """All of them do, but for those that are named."""
    reason = carry(architecture)
    assert bool(reason) == (architecture.name in NOT_CARRIED), reason


@pytest.mark.parametrize("name", ["llama", "t5"])
def test_the_fast_graphs_are_torch_exports(name: str) -> None:
    """With the default sizes, which vary, the file is byte-identical to that of torch.export."""
    assert compare(BY_NAME[name]) == ""


@pytest.mark.slow
@pytest.mark.parametrize("architecture", language_models(), ids=lambda each: each.name)
def test_every_fast_graph_is_torch_exports(architecture: Architecture) -> None:
    """All files and refusals are the same, but for the constraints of those that are named."""
    difference = compare(architecture)
    assert bool(difference) == (architecture.name in OTHER_CONSTRAINTS), difference


@pytest.mark.parametrize("name", [pytest.param("llama", marks=pytest.mark.slow), "gemma3_text", "t5"])
def test_a_fixed_cache_and_padding(name: str) -> None:
    """With buffers of one length and prompts that are padded, the tokens are still those of the model."""
    ir = prove(build(name), cache_length=16, padding=True)
    decode = ir.functions["decode"]
    assert all(tensor.shape[2] == 16 for tensor in cache_map(ir) if ".cross." not in tensor.name)
    assert [tensor.name for tensor in decode.graph_inputs[-2:]] == ["position", "attention_mask"]


@pytest.mark.parametrize("cache_length", [None, 16])
def test_layers_as_functions(llama: Any, graphs: IR, cache_length: int | None) -> None:
    """In both graphs, with growing and fixed caches; inlined, decode is the same as without them."""
    ir = prove(llama, cache_length=cache_length, blocks="function")
    decode = ir.functions["decode"]
    layers = len(cache_map(ir)) // 2
    for graph in (ir, decode):
        calls = [node for node in graph.nodes if node.is_call]
        assert [node.op_type.rpartition(".")[2] for node in calls] == ["LlamaDecoderLayer"] * layers
        assert "LlamaDecoderLayer" in graph.functions
    flat = carried(llama, cache_length=cache_length) if cache_length else graphs
    assert str(decode.at_level("aten")) == str(flat.functions["decode"])


def test_older_recurrent_states_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before 5.14, a layer has one state, and not a number of them."""
    config = AutoConfig.for_model("mamba2")
    older = SimpleNamespace(layers=[LinearAttentionLayer.__new__(LinearAttentionLayer)])
    monkeypatch.setattr(caches, "DynamicCache", lambda config: older)
    with pytest.raises(ExportError, match=r"keeps recurrent states, which needs transformers 5\.14"):
        caches.Caches.of(config, None)


def test_recurrent_states() -> None:
    """States of convolutions and recurrences are in the cache, too; only the batch varies in their shapes."""
    ir = prove(build("mamba2"), prompt=8)
    assert [(tensor.name, tensor.shape) for tensor in cache_map(ir)[:2]] == [
        ("layers.0.conv.0", ("batch", 96, 4)),
        ("layers.0.recurrent.0", ("batch", 4, 16, 8)),
    ]


def test_fixed_sizes(llama: Any) -> None:
    """With batch and prompt fixed, prefill is static, and so is decode with a fixed cache."""
    ir = prove(llama, batch=2, prompt=6, cache_length=16)
    assert ir.is_static
    assert ir.functions["decode"].is_static
    assert cache_map(ir)[0].bytes == 2 * 2 * 16 * 8 * 4


def test_all_logits(llama: Any) -> None:
    ir = carried(llama, all_logits=True)
    assert ir.graph_outputs[0].shape == ("batch", "seq", 99)
    ids = torch.randint(99, (3, 7))
    with torch.no_grad():
        expected = llama(ids).logits
    torch.testing.assert_close(IRExecutor(ir, llama.state_dict())(input_ids=ids)["logits"], expected)


def test_generate(graphs: IR, llama: Any) -> None:
    """Only the new tokens are returned."""
    prompt = torch.randint(3, 99, (2, 5))
    expected = torch.cat([prompt, generate(graphs, llama.state_dict(), 3, input_ids=prompt)], dim=1)
    for length in (5, 6, 7):
        with torch.no_grad():
            assert torch.equal(llama(expected[:, :length]).logits[:, -1].argmax(-1), expected[:, length])


def test_a_wrong_graph_does_not_pass(graphs: IR, llama: Any) -> None:
    """A decode graph with another scale of attention is found out by its logits, and the token is named."""
    wrong = graphs.clone()
    attention = next(n for n in wrong.functions["decode"].nodes if "scaled_dot_product" in n.op_type)
    attention.attrs["scale"] *= 1.1
    is_valid, told = verify_llm(wrong, llama, 4, **example_prompt(graphs))
    assert not is_valid
    assert told.startswith("token 2: ")


# -- what is refused --------------------------------------------------------------------------------------------------


def test_more_tokens_than_places(llama: Any) -> None:
    ir = carried(llama, cache_length=8)
    with pytest.raises(ExecutionError, match=r"6 \+ 3 tokens exceed the cache length 8"):
        generate(ir, llama.state_dict(), 4, input_ids=torch.ones(1, 6, dtype=torch.int64))


@pytest.mark.parametrize("count", [0, -1, 2.0, True])
def test_no_tokens_to_generate(llama: Any, count: Any) -> None:
    ir = carried(llama, cache_length=8)
    prompt = torch.ones(1, 6, dtype=torch.int64)
    for call in (
        lambda: generate(ir, llama.state_dict(), count, input_ids=prompt),
        lambda: verify_llm(ir, llama, count),
    ):
        with pytest.raises(ExecutionError, match=f"new_tokens must be a positive integer, not {count}"):
            call()


@pytest.mark.parametrize("positions", [1, 3])
def test_a_model_with_room_for_no_prompt(llama: Any, positions: int) -> None:
    """A prompt that can have one length at most, or none, is refused by its name."""
    config = copy.deepcopy(llama.config)
    config.max_position_embeddings = positions
    with pytest.raises(ExportError, match=f"has an empty range for 'seq': 2 to {positions - 1}; give"):
        extract_llm(config)


def test_a_cache_that_is_too_short(llama: Any) -> None:
    with pytest.raises(ExportError, match="cache_length must be at least 4, not 3"):
        extract_llm(llama, cache_length=3)


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (lambda: nn.Linear(2, 2), "expected a configuration or model of transformers, not Linear"),
        (lambda: build("bert"), "BertForMaskedLM does not generate text"),
        (lambda: build("vit"), "does not generate text"),
        (
            lambda: AutoConfig.for_model("deepseek_v4", num_hidden_layers=1),
            "layer 0 of deepseek_v4 keeps a DeepseekV4HCACache, which is not supported",
        ),
        (
            lambda: build("rwkv"),
            "a size cannot vary as asked: seq, dimension 1 of 'input_ids', is always 8; fix the length of the prompt",
        ),
        (lambda: build("openai_gpt"), "OpenAIGPTLMHeadModel keeps no cache from one token to the next"),
        (lambda: build("bert").config, "BertLMHeadModel does not generate text, or not with this configuration"),
        (lambda: build("vit").config, "no language model for a configuration of 'vit'"),
        (lambda: build("whisper").config, "reads input_features, not token ids; pass an example as encoder_input"),
    ],
)
def test_models_that_are_refused(made: Any, message: str) -> None:
    with pytest.raises(ExportError, match=message):
        extract_llm(made())


# -- the command line -------------------------------------------------------------------------------------------------

TINY = "hf:llama?hidden_size=32&intermediate_size=48&num_hidden_layers=1&num_attention_heads=4&vocab_size=64"


def test_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One verb writes the file, verifies it and prints the map; without -o it describes a file."""
    path = tmp_path / "llama.json"
    assert main(["llm", TINY, "-o", str(path), "--verify", "3", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["is_valid"]
    assert [each["name"] for each in told["cache"]] == ["layers.0.key", "layers.0.value"]
    assert told["decode"]["input_shapes"]["cache_layers_0_key"] == ["batch", 4, "past", 8]
    assert main(["llm", str(path)]) == 0
    described = capsys.readouterr().out
    assert described.splitlines()[2].split()[:2] == ["layers.0.key", "float32[batch,"]
    assert IR.load(path).functions["decode"].symbols["past"].max == 2047


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([TINY.replace("llama", "lama"), "-o", "x.json"], "'lama' is neither a folder with a config.json nor a model"),
        ([TINY.replace("hidden_size", "hiden_size", 1), "-o", "x.json"], "llama has no setting 'hiden_size'; did you"),
        (["hf:llama?hidden_size", "-o", "x.json"], "'hidden_size' is not a setting; write it as"),
        ([TINY, "-o", "x.json", "--batch", "0"], "--batch must be at least 1, not 0"),
        (["missing.json"], "missing.json"),
        (["hf:deepseek_v4?num_hidden_layers=1", "-o", "x.json"], "keeps a DeepseekV4HCACache"),
    ],
)
def test_command_mistakes(
    arguments: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """One line, status 1, and no file."""
    monkeypatch.chdir(tmp_path)
    assert main(["llm", *arguments]) == 1
    error = capsys.readouterr().err
    assert message in error
    assert list(tmp_path.iterdir()) == []


def test_an_old_transformers_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """In one sentence, before anything is imported that it does not have."""
    monkeypatch.setattr("transformers.__version__", "5.4.0")
    with pytest.raises(
        MissingExtraError, match=r"^extracting language models needs transformers 5\.5 or newer, and 5\.4\.0"
    ):
        extract_llm(AutoConfig.for_model("gpt2"))
