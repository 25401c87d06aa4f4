"""Cache forms: recognised attention, and step graphs that generate what the model generates."""

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, GPTNeoConfig, Ministral3Config

import torch_ir
from tests.architectures import architectures
from tests.cache_forms import CAPACITY, FORMS, carry, causal_models, difference, prompts_for, quantised_error
from tests.command_line import failure
from torch_ir import IR, ExecutionError, GraphError, IRExecutor, OpNode, TensorMeta, optimize
from torch_ir.cli import main
from torch_ir.ir import Device, Dtype
from torch_ir.llm import cache_attention, checkpoint_weights, empty_cache, extract_llm, to_cache_form, verify_llm
from torch_ir.llm.forms import position_reads
from torch_ir.llm.generation import Generator, compare_steps

BY_NAME = {each.name: each for each in architectures()}
SAMPLE = {
    "llama": ("slots", "paged"),
    "mistral": ("rolling",),
    "gemma2": ("rolling", "paged", "rolling pages"),
    "gpt2": ("paged",),
    "qwen2": ("slots",),
    "mixtral": ("paged",),
}


@cache
def built(name: str) -> Any:
    return BY_NAME[name].build()


@cache
def extracted(name: str) -> IR:
    return extract_llm(built(name))


@pytest.mark.parametrize("name", SAMPLE)
def test_random_schedules_generate_the_tokens_of_the_model(name: str) -> None:
    """Chunks, drafts, pages and sequences of different lengths give the tokens and logits of `generate`."""
    model = built(name)
    seed = list(SAMPLE).index(name)
    prompts, own = prompts_for(model, seed)
    for form in SAMPLE[name]:
        step = to_cache_form(extracted(name), **FORMS[form])
        assert not difference(step, checkpoint_weights(model), prompts, own, seed), form


@pytest.mark.slow
@pytest.mark.parametrize("name", [each.name for each in causal_models()])
def test_every_causal_architecture(name: str) -> None:
    """Every form generates the tokens of `generate`; what is refused is refused by layer."""
    for form, verdict in carry(BY_NAME[name]).items():
        assert verdict == "equal" or "layer" in verdict, f"{form}: {verdict}"


def test_description_of_attention() -> None:
    """Windows, scale and soft cap are those of the configuration; names are those of both graphs."""
    ir, config = extracted("gemma2"), built("gemma2").config
    found = cache_attention(ir)
    windows = [config.sliding_window if kind == "sliding_attention" else None for kind in config.layer_types]
    assert [each.span for each in found] == windows
    assert [each.layer for each in found] == list(range(config.num_hidden_layers))
    for each in found:
        assert each.softcap == pytest.approx(config.attn_logit_softcapping)
        assert each.scale == pytest.approx(config.query_pre_attn_scalar**-0.5)
        assert each.past == tuple(f"cache_layers_{each.layer}_{part}" for part in ("key", "value"))
    (first, *_) = cache_attention(extracted("llama"))
    decode = extracted("llama").functions["decode"]
    assert set(first.present) <= {tensor.name for tensor in decode.graph_outputs}
    assert first.scale == pytest.approx(1 / math.sqrt(8))


@pytest.mark.slow
def test_windows_of_stored_masks() -> None:
    """GPT-Neo stores its masks; a window that no node mentions is read from all of their positions."""
    sizes = {"hidden_size": 32, "num_layers": 2, "num_heads": 4, "vocab_size": 99, "max_position_embeddings": 96}
    config = GPTNeoConfig(**sizes, window_size=40, attention_types=[[["global", "local"], 1]])
    assert [each.span for each in cache_attention(extract_llm(config))] == [None, 40]


@pytest.mark.parametrize("form", ["int8", "paged fp8"])
def test_quantised_caches(form: str) -> None:
    """Logits equal those of the model with a cache that is rounded the same way, and are near those without."""
    options, model = FORMS[form], built("llama")
    step = to_cache_form(extracted("llama"), **options)
    dtypes = {tensor.dtype for tensor in step.graph_inputs if tensor.name.endswith(("key", "value"))}
    assert dtypes == {options["cache_dtype"]}
    error, rounding = quantised_error(step, model.state_dict(), model, options["cache_dtype"])
    assert error < 1e-5 < rounding < 0.1


def test_entries_are_rounded_to_the_nearest() -> None:
    """Entries of the first layer differ by half a step of int8 at most, and by 1/16 of themselves in fp8."""
    inputs = {"input_ids": torch.tensor([[5, 6, 7]]), "position": torch.tensor([0]), "logits_at": torch.tensor([[2]])}
    made = {}
    for dtype in (None, "int8", "float8_e4m3fn"):
        step = to_cache_form(extracted("llama"), cache_dtype=dtype)
        state = empty_cache(step, batch=1, slots=3)
        made[dtype] = IRExecutor(step, built("llama").state_dict())(**inputs, cache=state)["cache"]
    for place in ("layers.0.key", "layers.0.value"):
        exact, scale = made[None][place], made["int8"][f"{place}_scale"]
        assert ((made["int8"][place] * scale - exact).abs() <= 0.5001 * scale).all()
        assert made["int8"][place].abs().amax() == 127
        fine = made["float8_e4m3fn"][f"{place}_scale"]
        found = made["float8_e4m3fn"][place].float() * fine
        assert ((found - exact).abs() <= torch.maximum(exact.abs() / 16, fine * 2**-9) * 1.001).all()


def test_optimised_saved_loaded(tmp_path: Path) -> None:
    """A form of an optimised graph, saved and loaded, generates the same tokens, draws, and has a cost."""
    model = built("mistral")
    better, _ = optimize(extracted("mistral"), "full")
    to_cache_form(better, "paged", block_size=4).save(tmp_path / "step.json")
    step = torch_ir.load_ir(tmp_path / "step.json")
    prompts, own = prompts_for(model, 7)
    assert not difference(step, checkpoint_weights(model), prompts, own, 7)
    assert "block_tables" in torch_ir.ir_to_mermaid(step)
    sizes = {"batch": 2, "seq": 1, "table": 3, "blocks": 8, "outputs": 1}
    assert torch_ir.cost(step.specialize(**sizes)).flops > 0


@pytest.mark.parametrize("level", [None, "full"])
def test_slots_outside_the_pool_are_an_error(level: str | None) -> None:
    """A negative slot, as other servers mark padding, is no place in the last block."""
    step = to_cache_form(extracted("llama"), "paged", block_size=4)
    run = IRExecutor(optimize(step, level)[0] if level else step, checkpoint_weights(built("llama")))
    for slot in (-1, 16):
        inputs = {
            "input_ids": torch.tensor([[5, 6]]),
            "position": torch.tensor([0]),
            "logits_at": torch.tensor([[1]]),
            "block_tables": torch.tensor([[0]]),
            "slot_mapping": torch.tensor([[0, slot]]),
            "cache": empty_cache(step, blocks=4),
        }
        with pytest.raises(ExecutionError, match="out of bounds for dimension 0 with size 4"):
            run(**inputs)


class Rounded(Generator):
    """A graph that wrongly returns logits of less precision than the model."""

    def steps(self, count: int, inputs: Mapping[str, Any]) -> Iterator[torch.Tensor]:
        return (logits.to(torch.bfloat16) for logits in super().steps(count, inputs))


def test_bfloat16_logits_are_compared_as_the_model_returns_them() -> None:
    """`generate` of transformers returns float32; the graphs are compared with what the model itself computes."""
    model = BY_NAME["gpt2"].build().to(torch.bfloat16)
    ir = extract_llm(model)
    prompt = torch.tensor([[5, 6, 7], [8, 9, 10]])
    for graph in (ir, to_cache_form(ir)):
        assert verify_llm(graph, model, 3, input_ids=prompt) == (
            True,
            "3 tokens equal the model's own, max diff of logits 0",
        )
    steps = Rounded(extract_llm(built("gpt2")), checkpoint_weights(built("gpt2")))
    told = compare_steps(steps, built("gpt2"), 3, {"input_ids": prompt})
    assert told == (False, "token 1: dtype torch.bfloat16 instead of torch.float32, max diff inf")


@pytest.mark.slow
def test_onnx_runtime(tmp_path: Path) -> None:
    """A step in ONNX Runtime returns the logits and the cache of the executor."""
    onnxruntime = pytest.importorskip("onnxruntime")
    model = built("llama")
    step = to_cache_form(extracted("llama"))
    torch_ir.to_onnx(step, tmp_path / "step.onnx", model.state_dict())
    session = onnxruntime.InferenceSession(tmp_path / "step.onnx", providers=["CPUExecutionProvider"])
    inputs = {
        "input_ids": torch.tensor([[5, 6, 7], [8, 9, 0]]),
        "position": torch.tensor([2, 0]),
        "logits_at": torch.tensor([[2], [1]]),
    }
    entries = {place: torch.randn(tensor.shape) for place, tensor in empty_cache(step, batch=2, slots=6).items()}
    expected = IRExecutor(step, model.state_dict())(**inputs, cache=entries)
    given = [*inputs.values(), *entries.values()]
    names = [tensor.name for tensor in step.graph_inputs]
    by_name = dict(zip(["input_ids", "position", "logits_at"], given, strict=False))
    by_name |= dict(zip(names[3:], entries.values(), strict=True))
    made = session.run(None, {name: value.numpy() for name, value in by_name.items()})
    for found, value in zip(made, [expected["logits"], *expected["cache"].values()], strict=True):
        torch.testing.assert_close(torch.from_numpy(found), value, rtol=1e-4, atol=1e-5)


def with_node(ir: IR, after: str, op_type: str, attrs: dict[str, Any]) -> IR:
    """Return the graph with one more node, which the readers of another read."""
    ir = ir.clone()
    node = ir.node(after)
    made = TensorMeta("added", node.output.shape, node.output.dtype)
    node.output.replace_all_uses_with(made)
    ir.insert_after(node, OpNode("added", op_type, [node.output], [made], attrs, args=["self"]))
    return ir


def with_other_mask(ir: IR) -> IR:
    ir = ir.clone()
    next(node for node in ir.nodes if node.op_type == "aten.le.Tensor").op_type = "aten.ne.Tensor"
    return ir


def with_blocks_in_mask(ir: IR) -> IR:
    """Return the graph with a mask that also hides keys eight blocks of four before: a window of no single number."""
    ir = ir.clone()
    mask = next(node for node in ir.nodes if node.op_type == "aten.le.Tensor")
    key, query, seen = *mask.inputs, mask.output
    made = [TensorMeta(name, each.shape, "int64") for name, each in (("block_k", key), ("block_q", query))]
    apart, near = TensorMeta("apart", seen.shape, "int64"), TensorMeta("near", seen.shape, "bool")
    both = TensorMeta("both", seen.shape, "bool")
    seen.replace_all_uses_with(both)
    nodes = [
        OpNode(block.name, "aten.floor_divide.Scalar", [place], [block], {"other": 4}, args=["self"])
        for block, place in zip(made, (key, query), strict=True)
    ]
    nodes += [
        OpNode("apart", "aten.sub.Tensor", made[::-1], [apart], {"alpha": 1}, args=["self", "other"]),
        OpNode("near", "aten.lt.Scalar", [apart], [near], {"other": 8}, args=["self"]),
        OpNode("both", "aten.logical_and.default", [seen, near], [both], {}, args=["self", "other"]),
    ]
    ir.insert_after(mask, nodes)
    return ir


def with_scaled_embedding(ir: IR, op_type: str, attrs: dict[str, Any]) -> IR:
    """Return the graph with embeddings divided by one number that is computed from all of them."""
    ir = ir.clone()
    node = ir.node("embedding")
    number, made = (
        TensorMeta(name, shape, "float32") for name, shape in (("number", ()), ("added", node.output.shape))
    )
    node.output.replace_all_uses_with(made)
    given = [node.output, number]
    ir.insert_after(
        node,
        [
            OpNode("number", op_type, given[:1], [number], attrs, args=["self"]),
            OpNode("added", "aten.div.Tensor", given, [made], {}, args=["self", "other"]),
        ],
    )
    return ir


def with_other_state(ir: IR) -> IR:
    """Return the graph with a convolution's state in place of the first keys."""
    ir = ir.clone()
    tree: Any = ir.output_tree
    cache = tree.items[1]
    other = replace(cache, keys=("layers.0.conv.0", *cache.keys[1:]))
    ir.output_tree = replace(tree, items=(tree.items[0], other))
    return ir


def with_shared_states(ir: IR) -> IR:
    """Return the graph with the same keys in both layers."""
    ir = ir.clone()
    logits, key, value, _, other = ir.graph_outputs
    ir.graph_outputs = [logits, key, value, key, other]
    return ir


def with_large_mask(ir: IR) -> IR:
    """Return the graph with a mask that takes 256 GiB."""
    ir = ir.clone()
    mask = next(node for node in ir.nodes if node.op_type == "aten.le.Tensor")
    many, every = TensorMeta("many", (1 << 38,), "bool"), TensorMeta("every", (), "bool")
    both = TensorMeta("both", mask.output.shape, "bool")
    sizes = {"size": [1 << 38], "dtype": Dtype("bool"), "layout": None, "device": Device("cpu"), "pin_memory": False}
    mask.output.replace_all_uses_with(both)
    ir.insert_after(
        mask,
        [
            OpNode("many", "aten.ones.default", [], [many], sizes),
            OpNode("every", "aten.all.default", [many], [every], {}, args=["self"]),
            OpNode("both", "aten.logical_and.default", [mask.output, every], [both], {}, args=["self", "other"]),
        ],
    )
    return ir


REFUSED: dict[str, tuple[Any, dict[str, Any], str]] = {
    "recurrent states": (lambda: with_other_state(extracted("gpt2")), {}, r"layer 0 keeps 'layers\.0\.conv\.0'"),
    "fixed sizes": (lambda: extracted("gpt2").specialize(batch=1), {}, "batch and prompt must vary"),
    "other mask": (lambda: with_other_mask(extracted("gpt2")), {}, "layer 0: its mask 'expand' is not causal"),
    "shared states": (lambda: with_shared_states(extracted("gpt2")), {}, "are the same tensor of the cache"),
    "large mask": (lambda: with_large_mask(extracted("gpt2")), {}, "'expand'.* takes too much memory or time"),
    "mixing": (
        lambda: with_node(extracted("gpt2"), "embedding", "aten.cumsum.default", {"dim": 1, "dtype": None}),
        {},
        "'added' .aten.cumsum.default. .*outside of attention",
    ),
    "a window of blocks": (lambda: with_blocks_in_mask(extracted("gpt2")), {}, "layer 0: its mask .* is not causal"),
    "the order of tokens": (
        lambda: with_node(extracted("gpt2"), "embedding", "aten.flip.default", {"dims": [1]}),
        {},
        "'added' .*tokens",
    ),
    "a sum of all": (
        lambda: with_scaled_embedding(extracted("gpt2"), "aten.sum.default", {"dtype": None}),
        {},
        "'number' .*tokens",
    ),
    "the largest of all": (
        lambda: with_scaled_embedding(extracted("gpt2"), "aten.amax.default", {"dim": [], "keepdim": False}),
        {},
        "'number' .*tokens",
    ),
    "no window": (lambda: extracted("gpt2"), {"rolling": True}, "no layer has a sliding window"),
    "layout": (lambda: extracted("gpt2"), {"layout": "pages"}, "unknown layout 'pages'; expected one of slots, paged"),
    "dtype": (lambda: extracted("gpt2"), {"cache_dtype": "int4"}, "unknown cache_dtype 'int4'; expected one of int8"),
    "block": (lambda: extracted("gpt2"), {"block_size": 0}, "block_size must be at least 1, not 0"),
    "length": (lambda: extracted("gpt2"), {"max_length": 10**6}, "max_length must be between 1 and 64"),
}


@pytest.mark.slow
def test_a_mask_as_input_is_refused() -> None:
    with pytest.raises(GraphError, match="extract without padding"):
        to_cache_form(extract_llm(built("gpt2"), padding=True))


@pytest.mark.parametrize(
    ("name", "in_place", "forms"),
    [
        ("mistral", True, ("rolling pages", "slots")),
        pytest.param("gemma2", False, tuple(FORMS)[:4], marks=pytest.mark.slow),
    ],
)
def test_a_cache_of_fixed_length(name: str, in_place: bool, forms: tuple[str, ...]) -> None:
    """Graphs with a cache of fixed length have the same forms; its length is the limit of positions."""
    model = built(name)
    ir = extract_llm(model, cache_length=CAPACITY, in_place=in_place)
    prompts, own = prompts_for(model, 5)
    for form in forms:
        assert not difference(to_cache_form(ir, **FORMS[form]), checkpoint_weights(model), prompts, own, 5), form
    assert [each.span for each in cache_attention(ir)] == [each.span for each in cache_attention(extracted(name))]
    with pytest.raises(GraphError, match=f"max_length must be between 1 and {CAPACITY}"):
        to_cache_form(ir, max_length=CAPACITY + 1)
    entries = next(node for node in ir.nodes if node.op_type == "aten.index_copy.default")
    reader = next(node for node in entries["source"].consumers if node is not entries)
    reader.replace_input(entries["source"], entries.output)
    with pytest.raises(GraphError, match=r"prefill reads the buffer of 'layers\.0\.key'"):
        to_cache_form(ir)


@pytest.mark.parametrize("compared", [1 << 17, 10])
def test_factors_that_are_one_at_first(compared: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Queries of Ministral 3 are scaled by a number that depends on the position, but only from the 16th on.

    With a limit, all positions are compared, also those behind the number that is compared first.
    """
    monkeypatch.setattr(position_reads, "_LONGEST", compared)
    rope = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 2.0, "original_max_position_embeddings": 16}
    rope |= {"llama_4_scaling_beta": 4.0, "beta_fast": 32.0, "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0}
    sizes = {"vocab_size": 99, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "head_dim": 8}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64}
    config = Ministral3Config(**sizes, **heads, initializer_range=0.2, rope_parameters=rope)
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config).eval()
    step = to_cache_form(extract_llm(model))
    is_valid, told = verify_llm(step, model, 12, input_ids=torch.randint(3, 90, (2, 9)))
    assert is_valid, told


def test_blocks_of_windows_are_used_in_turn() -> None:
    """A sequence has as many blocks as its window and the tokens of a step need, however long it is."""
    step = to_cache_form(extracted("mistral"), "paged", block_size=4, rolling=True)
    shapes = {tensor.name: tensor.shape for tensor in step.graph_inputs}
    assert shapes["window_tables"] == ("batch", "window_table")
    assert "block_tables" not in shapes  # no layer sees everything
    assert shapes["cache_layers_0_key"][:2] == ("window_blocks", 4)
    assert step.constraints == ["4 * window_table >= seq + 3"]
    model = built("mistral")
    is_valid, told = verify_llm(step, model, 20, input_ids=torch.randint(3, 40, (2, 5)))
    assert is_valid, told
    run = IRExecutor(step, model.state_dict())
    inputs = {"input_ids": torch.ones(1, 3, dtype=torch.int64), "position": torch.tensor([0])}
    table = {"window_tables": torch.tensor([[0]]), "window_mapping": torch.arange(3)[None]}
    with pytest.raises(ExecutionError, match=r"4 \* window_table >= seq \+ 3"):
        run(**inputs, **table, logits_at=torch.tensor([[2]]), cache=empty_cache(step, window_blocks=1))


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case: str) -> None:
    """What has no form is refused in one sentence, by layer or node."""
    make, options, message = REFUSED[case]
    with pytest.raises(GraphError, match=message):
        to_cache_form(make(), **options)


def test_arguments_by_position() -> None:
    """A file may list the inputs of a node by position; that is the same graph."""
    whole = extracted("llama")
    document = json.loads(whole.to_json())
    for node in document["nodes"]:
        if node["op_type"] in ("aten.slice.Tensor", "aten.unsqueeze.default"):
            node.pop("args", None)
    del document["digest"]
    by_position = IR.from_json(json.dumps(document))
    assert any(not node.has_named_args for node in by_position.nodes)
    assert to_cache_form(by_position).to_json() == to_cache_form(whole).to_json()
    assert cache_attention(by_position) == cache_attention(whole)


def test_an_ordinary_graph_is_refused() -> None:
    """A graph without tokens and cache has no form."""
    x = TensorMeta("x", (2, 3), "float32")
    ir = IR([OpNode("relu", "aten.relu.default", [x], [TensorMeta("relu", (2, 3), "float32")])], [x], [])
    for call in (to_cache_form, cache_attention, empty_cache):
        with pytest.raises(GraphError, match=r"extract_llm|to_cache_form"):
            call(ir)


def test_rolling_slots_have_room_for_the_new_tokens() -> None:
    """A cache has the window and the tokens of a step less one; more tokens are refused when the graph runs."""
    step = to_cache_form(extracted("mistral"), rolling=True)
    inputs = {"input_ids": torch.ones(1, 3, dtype=torch.int64), "position": torch.tensor([0])}
    run = IRExecutor(step, built("mistral").state_dict())
    assert empty_cache(step, batch=1, room=3)["layers.0.key"].shape[1] == 4 + 3 - 1
    run(**inputs, logits_at=torch.tensor([[2]]), cache=empty_cache(step, batch=1, room=3))
    with pytest.raises(ExecutionError, match="room >= seq"):
        run(**inputs, logits_at=torch.tensor([[2]]), cache=empty_cache(step, batch=1, room=2))


def test_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`--form` rewrites the graphs of a file; options of other uses are refused."""
    source, target = str(tmp_path / "llm.json"), str(tmp_path / "step.json")
    extracted("mistral").save(source)
    assert main(["llm", source, "--form", "slots", "--rolling", "--cache-dtype", "int8", "-o", target]) == 0
    assert "layers.0.key_scale    float32[batch, room + 3, 2, 1]" in capsys.readouterr().out
    assert main(["llm", target, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["step"]["input_shapes"]["position"] == ["batch"]
    assert found["cache"][0]["dtype"] == "int8"
    assert not torch_ir.load_ir(target).functions
    for words, message in (
        (["--rolling"], "--rolling is an option of --form"),
        (["--form", "pages"], "unknown layout 'pages'; expected one of slots, paged"),
        (["--form", "slots", "--verify", "4"], "--verify needs the model"),
    ):
        assert message in failure(capsys, "llm", source, *words, "-o", target)
