"""Graphs of configurations with a `quantization_config`: quantised weights by their own keys, dequantised by nodes."""

import json
import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import save_file

from tests.architectures import architectures
from tests.command_line import failure
from tests.quantized_checkpoints import Format, formats, fp8
from torch_ir import IR, ExportError, IRExecutor, WeightLoadError, cost, cost_report, extract_ir, load_weights, optimize
from torch_ir.cli import main
from torch_ir.llm import checkpoint_weights, extract_llm, generate, to_checkpoint_layout
from torch_ir.llm.checkpoint_layout import Layout
from torch_ir.llm.quantization_options import EXPRESSIONS, TARGETS

SIZES = {
    "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 1, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 128, "max_position_embeddings": 64,
}  # fmt: skip
FORMATS = formats()
FP8 = {"quant_method": "fp8", "weight_block_size": [32, 32]}
FIXED: dict[str, Any] = {"batch": 1, "prompt": 5, "cache_length": 16}
IDS = torch.arange(5).view(1, 5) + 3


@pytest.fixture(scope="module")
def llama() -> tuple[Any, IR]:
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES)).eval().to(torch.bfloat16)
    return model, extract_ir(model, (), kwargs={"input_ids": IDS, "use_cache": False}, strict=False)


def written(model: Any, form: Format) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """Return a checkpoint of a model in a format, and the weights that its reference dequantises."""
    torch.manual_seed(1)
    stored, reference = {}, {}
    for key, weight in model.state_dict().items():
        stored[key] = reference[key] = weight
        if "proj" in key:
            parts, reference[key] = form.write(stored.pop(key))
            stored |= {f"{key.removesuffix('weight')}{name}": part for name, part in parts.items()}
    return stored, reference


def quantised(ir: IR, model: Any, config: dict[str, Any], **options: Any) -> IR:
    """Return a graph for a quantised checkpoint as a reader of its file gets it."""
    model.config.quantization_config = dict(config)
    try:
        return IR.from_json(to_checkpoint_layout(ir, model, **options).to_json())
    finally:
        del model.config.quantization_config


@pytest.mark.parametrize("form", FORMATS, ids=lambda form: form.name)
def test_equal_to_the_reference(llama: tuple[Any, IR], form: Format) -> None:
    """Dequantised once or in each run, results are those of the reference's weights, to the bit."""
    model, ir = llama
    stored, reference = written(model, form)
    expected = IRExecutor(ir, reference)(input_ids=IDS, use_cache=False)["logits"]
    described = {key for key in stored if key.endswith(form.unread) and form.unread}
    stored = {key: each for key, each in stored.items() if key not in described}
    for place in ("prologue", "layer"):
        graph = quantised(ir, model, form.config, dequantize=place)
        executor = IRExecutor(graph, stored)
        assert torch.equal(executor(input_ids=IDS, use_cache=False)["logits"], expected)
        ahead = sum(value.numel() * value.element_size() for value in executor._ready)
        assert (ahead > 10_000) == (place == "prologue")
    dtypes = {param.key: param.dtype for param in graph.params}
    for key, each in stored.items():
        if key in dtypes:
            assert dtypes[key] == str(each.dtype).removeprefix("torch.")


@pytest.mark.parametrize("form", random.Random(3).sample(FORMATS, 3), ids=lambda form: form.name)
def test_optimised(llama: tuple[Any, IR], form: Format) -> None:
    """Passes keep the meaning of both forms, and a dequantisation in a layer stays there."""
    model, ir = llama
    stored, reference = written(model, form)
    expected = IRExecutor(ir, reference)(input_ids=IDS, use_cache=False)["logits"].float()
    for place in ("prologue", "layer"):
        better, _ = optimize(quantised(ir, model, form.config, dequantize=place), "basic")
        executor = IRExecutor(better, stored)
        torch.testing.assert_close(executor(input_ids=IDS, use_cache=False)["logits"].float(), expected)
        ahead = sum(value.numel() * value.element_size() for value in executor._ready)
        assert (ahead > 10_000) == (place == "prologue")


def test_the_cost_counts_quantised_bytes(llama: tuple[Any, IR]) -> None:
    """In a layer, a quantised weight is read as it is stored: four bits, scales and zero points."""
    model, ir = llama
    form = next(form for form in FORMATS if form.name == "gptq int4")
    graph = quantised(ir, model, form.config, dequantize="layer")
    stored, _ = written(model, form)
    constants = sum(8 * 4 for param in graph.params if param.param and not param.param.in_state_dict)
    weights = sum(each.numel() * each.element_size() for each in stored.values())
    assert weights <= cost_report(graph).weight_bytes <= weights + constants
    node = next(node for node in graph.nodes if node.op_type == "fused.dequantize_linear")
    prefix = "model.layers.0.self_attn.q_proj."
    own = sum(each.numel() * each.element_size() for key, each in stored.items() if key.startswith(prefix))
    row = next(row for row in cost(graph).nodes if row.node is node)
    assert row.bytes_read == own + 5 * 64 * 2


# -- language models --------------------------------------------------------------------------------------------------


def test_generate_from_an_fp8_mixture_of_experts(tmp_path: Path) -> None:
    """DeepSeek-V3: experts of a checkpoint are dequantised one by one and stacked; layers may be functions."""
    row = next(each for each in architectures() if each.name == "deepseek_v3")
    model = row.build()
    stored, reference = {}, {}
    model.config.quantization_config = {"quant_method": "fp8", "weight_block_size": [16, 16], "fmt": "e4m3"}
    ir = extract_llm(model, **FIXED)
    quantised_keys = {key for param in ir.params if param.dtype == "float8_e4m3fn" for key in param.stored_keys}
    assert any("experts.3.gate_proj" in str(key) for key in quantised_keys)
    assert not any("mlp.gate.weight" in str(key) or "lm_head" in str(key) for key in quantised_keys)
    torch.manual_seed(0)
    for key, weight in checkpoint_weights(model).items():
        stored[key] = reference[key] = weight
        if key in quantised_keys:
            parts, reference[key] = fp8(weight, (16, 16))
            stored |= {f"{key.removesuffix('weight')}{name}": part for name, part in parts.items()}
    save_file({key: each.contiguous() for key, each in stored.items()}, tmp_path / "model.safetensors")
    del model.config.quantization_config
    prompt = torch.randint(3, 50, (1, 5))
    expected = generate(extract_llm(model, **FIXED), reference, 4, input_ids=prompt)
    weights = load_weights(tmp_path)
    assert torch.equal(generate(ir, weights, 4, input_ids=prompt), expected)
    model.config.quantization_config = {"quant_method": "fp8", "weight_block_size": [16, 16]}
    layers = extract_llm(model, dequantize="layer", **FIXED)
    assert torch.equal(generate(layers, weights, 4, input_ids=prompt), expected)


_OF_EXPERTS = ("fp8 blocks", "fp8 per tensor", "compressed int4", "gptq int4")


@pytest.mark.parametrize(
    "form",
    [
        pytest.param(form, id=form.name, marks=() if form.name in _OF_EXPERTS else pytest.mark.slow)
        for form in FORMATS
        if form.config["quant_method"] not in ("bitsandbytes", "torchao")  # which quantise linear layers only
    ],
)
def test_experts_of_each_format(form: Format) -> None:
    """The experts of a layer are read as stacks of quantised tensors; results equal the reference to the bit."""
    config = transformers.Qwen3MoeConfig(
        **SIZES, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=64, head_dim=16, decoder_sparse_step=1
    )
    torch.manual_seed(0)
    model = transformers.Qwen3MoeForCausalLM(config).eval().to(torch.bfloat16)
    ir = extract_ir(model, (), kwargs={"input_ids": IDS, "use_cache": False}, strict=False)
    graphs = [quantised(ir, model, form.config, dequantize=place) for place in ("prologue", "layer")]
    stacks = [param for param in graphs[0].params if param.param and param.param.kind == "stack"]
    assert len(stacks) >= 3
    torch.manual_seed(1)
    stored, reference = {}, {}
    for key, weight in checkpoint_weights(model).items():
        stored[key] = reference[key] = weight
        if "proj" in key:
            parts, reference[key] = form.write(stored.pop(key))
            parts = {name: part for name, part in parts.items() if not (form.unread and name.endswith(form.unread))}
            stored |= {f"{key.removesuffix('weight')}{name}": part for name, part in parts.items()}
    plain = to_checkpoint_layout(ir, model)
    expected = IRExecutor(plain, reference)(input_ids=IDS, use_cache=False)["logits"]
    for graph in graphs:
        assert torch.equal(IRExecutor(graph, stored)(input_ids=IDS, use_cache=False)["logits"], expected)


def test_layers_as_functions_dequantise_their_weights() -> None:
    """Equal layers are calls of one function, which takes quantised weights."""
    config = transformers.LlamaConfig(**{**SIZES, "num_hidden_layers": 3})
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(config).eval()
    plain = extract_llm(model, **FIXED)
    config.quantization_config = dict(FP8)
    layers = extract_llm(model, dequantize="layer", blocks="function", **FIXED)
    for graph in (layers, layers.functions["decode"]):
        calls = [node for node in graph.nodes if node.op_type.endswith("LlamaDecoderLayer")]
        assert len(calls) == 3
        assert any(tensor.dtype == "float8_e4m3fn" for tensor in calls[1].inputs)
        assert len({node.attrs["function"] for node in calls}) == 1
    stored, reference = written(model, FORMATS[0])
    tokens = [generate(graph, each, 4, input_ids=IDS) for graph, each in ((layers, stored), (plain, reference))]
    assert torch.equal(*tokens)


def test_gpt_oss(tmp_path: Path) -> None:
    """The experts of gpt-oss in mxfp4, bound by their `_blocks` and `_scales`."""
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors

    config = transformers.GptOssConfig(
        **SIZES,
        num_local_experts=4,
        num_experts_per_tok=2,
        head_dim=16,
        layer_types=["full_attention"],
    )
    torch.manual_seed(0)
    model = transformers.GptOssForCausalLM(config).eval()
    prompt = torch.randint(3, 50, (1, 5))
    plain = extract_llm(model, **FIXED)
    config.quantization_config = {
        "quant_method": "mxfp4",
        "modules_to_not_convert": ["model.layers.*.self_attn", "lm_head"],
    }
    ir = extract_llm(model, **FIXED)
    stored, reference = {}, {}
    for key, weight in model.state_dict().items():
        stored[key] = reference[key] = weight
        if key.endswith(("experts.gate_up_proj", "experts.down_proj")):
            experts, inputs, outputs = stored.pop(key).shape
            blocks = torch.randint(0, 256, (experts, outputs, inputs // 32, 16), dtype=torch.uint8)
            scales = torch.randint(115, 124, (experts, outputs, inputs // 32), dtype=torch.uint8)
            reference[key] = convert_moe_packed_tensors(blocks, scales).float()
            stored |= {f"{key}_blocks": blocks, f"{key}_scales": scales}
    assert torch.equal(generate(ir, stored, 4, input_ids=prompt), generate(plain, reference, 4, input_ids=prompt))
    logits = [IRExecutor(graph, each)(input_ids=prompt)["logits"] for graph, each in ((ir, stored), (plain, reference))]
    assert torch.equal(*logits)


# -- what a checkpoint says -------------------------------------------------------------------------------------------


def test_the_headers_of_a_checkpoint_decide(llama: tuple[Any, IR], tmp_path: Path) -> None:
    """Which weights are quantised, and in which dtypes scales are stored, follows from the file if it is given."""
    model, ir = llama
    form = next(form for form in FORMATS if form.name == "gptq int4")
    stored, reference = written(model, form)
    for key in [key for key in stored if "down_proj" in key]:
        del stored[key]
    key = "model.layers.0.mlp.down_proj.weight"
    stored[key] = reference[key] = model.state_dict()[key]
    stored["model.norm.weight"] = stored["model.norm.weight"].float()
    save_file({key: each.contiguous() for key, each in stored.items()}, tmp_path / "model.safetensors")
    with pytest.raises(WeightLoadError, match=r"down_proj\.qweight' is missing"):
        IRExecutor(quantised(ir, model, form.config), stored)
    graph = quantised(ir, model, form.config, checkpoint=tmp_path)
    expected = IRExecutor(ir, reference)(input_ids=IDS, use_cache=False)["logits"]
    assert torch.equal(IRExecutor(graph, load_weights(tmp_path))(input_ids=IDS, use_cache=False)["logits"], expected)
    assert next(param for param in graph.params if param.key == "model.norm.weight").dtype == "float32"


def test_a_scale_that_nothing_reads(llama: tuple[Any, IR], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without a scale of a weight, numbers would be wrong: it is an error, also for the command."""
    model, ir = llama
    form = next(form for form in FORMATS if form.name == "fp8 per tensor")
    stored, _ = written(model, form)
    graph = quantised(ir, model, form.config)
    extra = {**stored, "model.layers.0.mlp.up_proj.weight_scale_2": torch.tensor(2.0)}
    message = "nothing reads the scale 'model.layers.0.mlp.up_proj.weight_scale_2'"
    with pytest.raises(WeightLoadError, match=message):
        IRExecutor(graph, extra)
    graph.save(tmp_path / "graph.json")
    save_file({key: each.contiguous() for key, each in extra.items()}, tmp_path / "model.safetensors")
    assert main(["weights", "check", str(tmp_path / "graph.json"), str(tmp_path)]) == 1
    assert message in capsys.readouterr().out
    activations = {**stored, "model.layers.0.mlp.up_proj.input_scale": torch.tensor(2.0)}
    with pytest.warns(match="up_proj.input_scale"):
        IRExecutor(graph, activations)


# -- what is refused --------------------------------------------------------------------------------------------------


def _compressed(form: str, **weights: Any) -> dict[str, Any]:
    groups = {"group_0": {"targets": ["Linear"], "weights": weights}}
    return {"quant_method": "compressed-tensors", "format": form, "config_groups": groups}


def _torchao(name: Any, data: Any) -> dict[str, Any]:
    return {"quant_method": "torchao", "quant_type": {"default": {"_type": name, "_data": data}}}


REFUSED = {
    "unknown method": ({"quant_method": "spqr"}, "quant_method 'spqr', which is not supported; expected one of fp8,"),
    "no method": ({"bits": 4}, "quant_method 'None'"),
    "unknown option": ({**FP8, "weight_blok_size": 3}, "unknown option 'weight_blok_size' of fp8; did you mean"),
    "fp8 in another form": ({**FP8, "fmt": "e5m2"}, "fmt='e5m2'; of fp8, only 'e4m3'"),
    "gptq with 3 bits": ({"quant_method": "gptq", "bits": 3}, "bits=3; of gptq, only 2, 4, 8"),
    "gptq by module": ({"quant_method": "gptq", "bits": 4, "dynamic": {"-:x": {}}}, "dynamic="),
    "awq for another kernel": ({"quant_method": "awq", "bits": 4, "version": "gemv"}, "version='gemv'"),
    "groups that do not fit": (
        {"quant_method": "awq", "bits": 4, "group_size": 48},
        "not a multiple of the group size 48",
    ),
    "bitsandbytes in another dtype": (
        {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_storage": "bfloat16"},
        "bnb_4bit_quant_storage='bfloat16'",
    ),
    "compressed in another format": (
        _compressed("marlin-24", num_bits=4, type="int"),
        "the format 'marlin-24' with 4 bits",
    ),
    "compressed with 3 bits": (
        _compressed("pack-quantized", num_bits=3),
        "num_bits=3",
    ),
    "torchao by name": ({"quant_method": "torchao", "quant_type": "int4_weight_only"}, "quant_type='int4_weight_only'"),
    "a function of torchao": (
        _torchao("swap_conv2d_1x1_to_linear", {"model": 1}),
        "the type 'swap_conv2d_1x1_to_linear', which is not one of a configuration",
    ),
    "a function of torch": (
        _torchao("Int8WeightOnlyConfig", {"group_size": [{"_type": "torch.dtype", "_data": "load"}]}),
        "the type 'torch.dtype', which is not one of a configuration",
    ),
    "a type that is a list": (_torchao(["x"], {}), "the type ['x'], which is not one of a configuration"),
    "another algorithm": ({"quant_method": "modelopt", "quant_algo": "W4A8_AWQ"}, "quant_algo='W4A8_AWQ'"),
    "nothing to quantise": (
        {**FP8, "modules_to_not_convert": ["model", "lm_head"]},
        "no weight of LlamaForCausalLM is quantised",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_by_name(llama: tuple[Any, IR], name: str) -> None:
    config, message = REFUSED[name]
    with pytest.raises(ExportError) as caught:
        quantised(llama[1], llama[0], config)
    assert message in str(caught.value)


def test_a_wrong_place(llama: tuple[Any, IR]) -> None:
    with pytest.raises(ExportError, match="unknown dequantize 'lazily'; expected one of prologue, layer"):
        to_checkpoint_layout(llama[1], llama[0], dequantize="lazily")


# -- on the command line ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", [["extract", "--input", "int64[1,4]<9"], ["llm"]], ids=lambda command: command[0])
def test_on_the_command_line(command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A quantised configuration gives a graph of quantised weights; one that is not understood is refused."""
    config = transformers.LlamaConfig(**SIZES, quantization_config=FP8)
    config.save_pretrained(tmp_path)
    verb, *options = command
    graph = tmp_path / "out.json"
    arguments = [verb, str(tmp_path / "config.json"), "-o", str(graph), *options, "--dequantize", "layer"]
    assert main(arguments) == 0
    ir = IR.load(graph)
    assert Counter(param.dtype for param in ir.params)["float8_e4m3fn"] == 7
    assert any(node.op_type == "fused.dequantize_linear" for node in ir.nodes)
    capsys.readouterr()
    changed = json.loads((tmp_path / "config.json").read_text())
    changed["quantization_config"]["fmt"] = "e5m2"
    (tmp_path / "config.json").write_text(json.dumps(changed))
    assert "fmt='e5m2'" in failure(capsys, *arguments)


_JUNK = (
    None, True, -1, 0, 3, 1.5, "", "x", [], {}, [[1]], ["x"], [1], [0, 0], [-1, 5], 10**30, float("nan"), "a" * 5000,
    {"a": 1}, {"a": {}}, ["re:("], ["("],
)  # fmt: skip


def _edited(config: Any) -> Iterator[Any]:
    """Yield a configuration with each option, at any depth, replaced by values of other types, or left out."""
    for key in list(config) if isinstance(config, dict) else range(len(config)) if isinstance(config, list) else ():
        changed = [*_JUNK, *_edited(config[key])]
        yield from (
            {**config, key: value} if isinstance(config, dict) else [*config[:key], value, *config[key + 1 :]]
            for value in changed
        )
        if isinstance(config, dict):
            yield {other: value for other, value in config.items() if other != key}


@pytest.mark.parametrize("form", FORMATS, ids=lambda form: form.name)
def test_options_of_wrong_types_are_refused_in_one_sentence(llama: tuple[Any, IR], form: Format) -> None:
    """Each edit of a valid configuration is laid out, or refused with a typed error."""
    model, _ = llama
    refused = 0
    try:
        for config in _edited(form.config):
            model.config.quantization_config = config
            try:
                Layout.of(model, None)
            except ExportError:
                refused += 1
    finally:
        del model.config.quantization_config
    assert refused > 20


@pytest.mark.parametrize(
    "pattern", ["(a+)+$", "(.|.)" * 40 + "$", ".?" * 60, ".*" * 8 + "!", "(", "a" * 2000, r"(\w*)*"]
)
@pytest.mark.parametrize("option", ["modules_to_not_convert", "ignore"])
def test_patterns_that_would_not_end_are_refused(llama: tuple[Any, IR], option: str, pattern: str) -> None:
    """A pattern of a checkpoint may be a regular expression; matching one may take for ever."""
    model, _ = llama
    config: dict[str, Any] = {**FP8, option: [pattern]}
    if option == "ignore":
        config = {"quant_method": "compressed-tensors", "config_groups": {}, "ignore": [f"re:{pattern}"]}
    model.config.quantization_config = config
    try:
        with pytest.raises(ExportError, match=f"{option}=.*simple regular expressions"):
            Layout.of(model, None)
    finally:
        del model.config.quantization_config


def test_patterns_of_published_checkpoints_are_accepted() -> None:
    published = [
        r"re:.*lm_head", r"re:.*self_attn\.(q|k|v|o)_proj$", r"re:.*\.layers\.\d+\.mlp\.experts\.\d+\..*",
        r"re:^(?!.*experts).*$", r"re:visual.*", r"re:.*mlp\.(gate|up|gate_up|down)_proj.*", "Linear", "lm_head",
    ]  # fmt: skip
    assert published in TARGETS
    assert ["model.layers.*.self_attn", "lm_head", "vision_tower"] in EXPRESSIONS
