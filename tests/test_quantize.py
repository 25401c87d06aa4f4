"""`quantize`: weights and activations are rounded as plain torch rounds them, and stay quantised to the end."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import torch_ir
from tests.command_line import failure
from tests.needed import need_backend
from torch_ir import (
    IR,
    IRExecutor,
    QuantizationError,
    Recipe,
    Scheme,
    TensorMeta,
    movement,
    observe_ranges,
    quantize,
    sensitivity,
)
from torch_ir.cli import main
from torch_ir.llm import extract_llm
from torch_ir.quantization import LayerRule
from torch_ir.run.binding import bind


class Small(nn.Module):
    """A layer of every kind that can be quantised."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(40, 16)
        self.conv = nn.Conv1d(16, 16, 3, padding=1)
        self.matrix = nn.Parameter(torch.randn(16, 32))
        self.stack = nn.Parameter(torch.randn(2, 32, 16))
        self.head = nn.Linear(16, 10)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.table(ids)
        x = x + self.conv(x.transpose(1, 2)).transpose(1, 2)
        x = torch.bmm((x @ self.matrix).relu(), self.stack)
        out: Tensor = self.head(x)
        return out


@pytest.fixture(scope="module")
def small() -> tuple[nn.Module, IR, Tensor]:
    torch.manual_seed(0)
    model, ids = Small().eval(), torch.randint(0, 40, (2, 7))
    return model, torch_ir.extract_ir(model, (ids,), strict=False), ids


# -- an independent reference: round the weights of the model by hand, run it in eager ---------------------------------


def rounded(weight: Tensor, scheme: Scheme, channels: int, stacked: bool) -> Tensor:
    """Return a weight rounded to the values that a scheme can represent, in float64."""
    rows = weight.double().movedim(channels, 0) if not stacked else weight.double().transpose(-1, -2)
    shape = rows.shape
    flat = rows.reshape(shape[0] if not stacked else -1, -1 if not stacked else shape[-1])
    parts = flat.reshape(-1, scheme.group or flat.shape[1])
    if scheme.weight == "float8_e4m3fn":
        scale = parts.abs().amax(1, keepdim=True).float() / 448
        made = (parts.float() / scale).to(torch.float8_e4m3fn).double() * scale
    elif scheme.symmetric:
        least, most = {"int8": (-127, 127), "int4": (-7, 7)}[scheme.weight]
        scale = (parts.abs().amax(1, keepdim=True).float() / ((most - least) / 2)).double()
        made = (parts / scale).round().clamp(least, most) * scale
    else:
        steps = {"int8": 255, "int4": 15}[scheme.weight]
        low, high = parts.amin(1, keepdim=True).clamp(max=0), parts.amax(1, keepdim=True).clamp(min=0)
        scale = ((high - low).float() / steps).double()
        zero = (-low / scale).round()
        made = ((parts / scale).round().add(zero).clamp(0, steps) - zero) * scale
    made = made.reshape(shape)
    back = made.movedim(0, channels) if not stacked else made.transpose(-1, -2)
    return back.to(weight.dtype)


def eager_rounded(model: nn.Module, scheme: Scheme, inputs: tuple[Any, ...]) -> Tensor:
    """Run the model with rounded weights."""
    forms = {"table.weight": (0, False), "conv.weight": (0, False), "head.weight": (0, False)}
    weights = {
        name: rounded(value, scheme, *forms.get(name, (-1, True))) if "bias" not in name else value
        for name, value in model.state_dict().items()
    }
    found: Tensor = torch.func.functional_call(model, weights, inputs)
    return found


NAMES = ["int8", "int8-asym", "int8-g8", "int4", "int4-asym", "int4-g8", "int4-g16-asym", "fp8", "fp8-g8"]


@pytest.mark.parametrize("name", NAMES)
def test_weights_are_rounded_as_by_hand(small: tuple[nn.Module, IR, Tensor], name: str) -> None:
    """Every kind of layer computes with the weights that the reference rounds; the model's outputs are about 30."""
    model, ir, ids = small
    quantized, report = quantize(ir, name)
    assert [layer.scheme for layer in report.layers] == [str(Scheme.of(name))] * 5
    found = IRExecutor(quantized, model.state_dict())(ids)
    scheme = Scheme.of(name)
    assert scheme is not None
    expected = eager_rounded(model, scheme, (ids,))
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-4)
    assert not torch.allclose(found, model(ids), rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("name", ["int8", "int4-g8", "int4-asym", "fp8"])
def test_quantised_values_are_kept(small: tuple[nn.Module, IR, Tensor], name: str) -> None:
    """After binding, no float weight of a layer is left, before and after optimisation; the report has its bytes."""
    model, ir, _ = small
    quantized, report = quantize(ir, name)
    for graph in (quantized, torch_ir.optimize(quantized, "full")[0]):
        _, values = bind(graph, model.state_dict())
        kept = {key: value for key, value in values.items() if "bias" not in key}
        assert max(value.numel() for value in kept.values() if value.dtype == torch.float32) <= 256  # scales
        size = sum(value.numel() * value.element_size() for value in kept.values())
        assert size <= report.bytes_after + 8
        assert size == pytest.approx(report.bytes_after, rel=0.05)  # equal zero points are merged
    assert report.bytes_after < report.bytes_before / 2


@pytest.mark.parametrize("name", ["int4-g8", "w8a8-dynamic", "int8-dynamic-uint8", "fp8-dynamic"])
def test_optimize_keeps_the_meaning(small: tuple[nn.Module, IR, Tensor], name: str) -> None:
    """quantize, then optimize: the same numbers, bit for bit."""
    model, ir, ids = small
    quantized, _ = quantize(ir, name)
    better, _ = torch_ir.optimize(quantized, "full")
    first, second = (IRExecutor(graph, model.state_dict())(ids) for graph in (quantized, better))
    assert torch.equal(first, second)
    assert torch_ir.deserialize_ir(torch_ir.serialize_ir(quantized)).to_json() == quantized.to_json()


# -- language models ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def llama() -> tuple[Any, IR]:
    """A tiny Llama with tied embeddings, and its graph for any number of tokens."""
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    sizes = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3, "vocab_size": 128}
    config = transformers.LlamaConfig(**sizes, num_attention_heads=4, num_key_value_heads=2, tie_word_embeddings=True)
    model = transformers.LlamaForCausalLM(config).eval()
    ids = torch.randint(0, 128, (1, 8))
    seq = torch.export.Dim("seq", min=2, max=64)
    options = {"kwargs": {"use_cache": False}, "strict": False}
    return model, torch_ir.extract_ir(
        model, (ids,), dynamic_shapes={"input_ids": {1: seq}, "use_cache": None}, **options
    )


def test_int4_llama_equals_eager(llama: tuple[Any, IR]) -> None:
    """With open sizes, flat and with repeated blocks as one function, at a size that was not captured."""
    model, ir = llama
    scheme = Scheme("int4", group=32)
    quantized, _ = quantize(ir, scheme)
    folded, _ = quantize(ir.fold_blocks(), scheme)
    assert next(iter(folded.functions)) == "LlamaDecoderLayer"
    weights = dict(model.state_dict())
    del weights["lm_head.weight"]  # tied
    for name in weights:
        if "proj" in name or "embed" in name:
            weights[name] = rounded(weights[name], scheme, 0, False)
    ids = torch.randint(0, 128, (1, 13))
    expected = torch.func.functional_call(model, weights, (ids,), {"use_cache": False}).logits
    for graph in (quantized, folded):
        found = IRExecutor(graph, model.state_dict()).execute((ids,))[0]
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_layers_of_one_function_may_differ(llama: tuple[Any, IR]) -> None:
    """A function is copied for each combination of schemes; the names of layers are those of the flat graph."""
    model, ir = llama
    recipe = {"model.layers.0.*": "int8", "*.mlp.down_proj": None, "lm_head": "int8", "*": "int4-g32"}
    flat, report = quantize(ir, recipe)
    folded, folded_report = quantize(ir.fold_blocks(), recipe)
    ids = torch.randint(0, 128, (1, 9))
    first, second = (IRExecutor(graph, model.state_dict()).execute((ids,))[0] for graph in (flat, folded))
    assert torch.equal(first, second)
    assert {layer.name: layer.scheme for layer in report.layers} == {
        each.name: each.scheme for each in folded_report.layers
    }
    assert [name for name in folded.functions if "Layer" in name] == ["LlamaDecoderLayer", "LlamaDecoderLayer_1"]
    chosen = {layer.name: layer.scheme for layer in report.layers}
    assert chosen["model.layers.0.mlp.down_proj"] == "int8"  # the first pattern that matches
    assert chosen["model.layers.1.mlp.down_proj"] is None
    better, _ = torch_ir.optimize(ir, "full")  # merged and fused layers are quantised, too
    again, _ = quantize(better, "int8")
    close = IRExecutor(quantize(ir, "int8")[0], model.state_dict()).execute((ids,))[0]
    torch.testing.assert_close(IRExecutor(again, model.state_dict()).execute((ids,))[0], close, rtol=1e-3, atol=1e-4)


# -- activations -------------------------------------------------------------------------------------------------------


class Net(nn.Module):
    """Two convolutions and a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 16, 3, padding=1)
        self.norm = nn.BatchNorm2d(16)
        self.second = nn.Conv2d(16, 32, 3, stride=2)
        self.last = nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.second(self.norm(self.first(x)).relu()).relu()
        out: Tensor = self.last(x.mean((2, 3)))
        return out


@pytest.fixture(scope="module")
def net() -> tuple[nn.Module, IR, list[tuple[Tensor]]]:
    torch.manual_seed(1)
    model = Net().eval()
    inputs = [(torch.randn(1, 3, 12, 12),) for _ in range(4)]
    ir, _ = torch_ir.optimize(torch_ir.extract_ir(model, inputs[0], strict=False), "basic")
    return model, ir, inputs


def read_by_layers(ir: IR, weights: Any, inputs: list[tuple[Tensor]]) -> dict[str, list[Tensor]]:
    """Return what each layer reads, for each input, by the executor's observer of single nodes."""
    found: dict[str, list[Tensor]] = {}
    for given in inputs:
        values: dict[str, Tensor] = {ir.graph_inputs[0].name: given[0]}

        def keep(tensor: TensorMeta, value: Any, sizes: object, values: dict[str, Tensor] = values) -> None:
            values[tensor.name] = value

        IRExecutor(ir, weights, watch=keep).execute(given)
        for node in ir.nodes:
            if node.op_type in ("aten.conv2d.default", "aten.linear.default"):
                found.setdefault(node.name, []).append(values[node["input"].name])
    return found


@pytest.mark.parametrize("blocks", ["inline", "function"])
def test_entry_points_share_their_weights(blocks: str) -> None:
    """The bytes of a prefill and a decode graph are those of one model."""
    import transformers

    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "vocab_size": 40}
    config = transformers.LlamaConfig(**sizes, num_attention_heads=2, num_key_value_heads=2)
    _, report = quantize(extract_llm(config, blocks=blocks), "int8")
    matrices = 2 * 40 * 16 + 2 * (4 * 16 * 16 + 3 * 16 * 32)  # embeddings and head; attention and MLP of each layer
    assert report.bytes_before == 4 * matrices


def test_static_activations_equal_fake_quantisation(net: tuple[nn.Module, IR, list[tuple[Tensor]]]) -> None:
    """The executor computes what torch's own fake quantisation computes layer by layer, from the observed ranges."""
    model, ir, inputs = net
    weights = model.state_dict()
    ranges = observe_ranges(ir, weights, (each for each in inputs))
    seen = read_by_layers(ir, weights, inputs)
    expected = {name: (min(v.min().item() for v in vs), max(v.max().item() for v in vs)) for name, vs in seen.items()}
    assert list(ranges.values()) == list(expected.values())
    quantized, _ = quantize(ir, "w8a8", ranges=ranges)
    bound, values = bind(ir, weights)
    x = inputs[0][0]
    steps: list[Callable[[Tensor, Tensor, Any], Tensor]] = [
        lambda x, w, b: nn.functional.conv2d(x, w, b, padding=1).relu(),
        lambda x, w, b: nn.functional.conv2d(x, w, b, stride=2).relu().mean((2, 3)),
        nn.functional.linear,
    ]
    layers = [node for node in bound.nodes if node.op_type in ("aten.conv2d.default", "aten.linear.default")]
    for node, step, (low, high) in zip(layers, steps, ranges.values(), strict=True):
        low, high = min(low, 0.0), max(high, 0.0)
        scale = (high - low) / 255
        x = torch.fake_quantize_per_tensor_affine(x, scale, round(-low / scale), 0, 255)
        weight = values[node["weight"].key]
        scales = weight.abs().flatten(1).amax(1) / 127
        zeros = torch.zeros(len(scales), dtype=torch.int32)
        weight = torch.fake_quantize_per_channel_affine(weight, scales, zeros, 0, -127, 127)
        x = step(x, weight, values[node["bias"].key])
    torch.testing.assert_close(IRExecutor(quantized, weights)(inputs[0][0]), x, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("backend", ["onnxruntime", "openvino"])
@pytest.mark.parametrize("name", ["w8a8", "int4-asym"])
def test_runtimes_agree(net: tuple[nn.Module, IR, list[tuple[Tensor]]], backend: str, name: str) -> None:
    """A runtime may round a value halfway between two integers the other way: 2 steps of 255 of the largest output."""
    need_backend(backend)
    model, ir, inputs = net
    weights = model.state_dict()
    quantized, _ = quantize(ir, name, ranges=observe_ranges(ir, weights, inputs))
    expected = IRExecutor(quantized, weights)(inputs[0][0])
    found = torch_ir.compile(quantized, weights, backend=backend)(inputs[0][0])
    assert (found - expected).abs().max() <= expected.abs().max() * 2 / 255


def test_onnx_has_quantize_and_dequantize(net: tuple[nn.Module, IR, list[tuple[Tensor]]], tmp_path: Path) -> None:
    """Every layer reads DequantizeLinear of int8 weights and of a QuantizeLinear."""
    onnx = pytest.importorskip("onnx")
    pytest.importorskip("onnxscript")
    model, ir, inputs = net
    quantized, _ = quantize(ir, "w8a8", ranges=observe_ranges(ir, model.state_dict(), inputs))
    torch_ir.to_onnx(quantized, tmp_path / "net.onnx", model.state_dict())
    graph = onnx.load(tmp_path / "net.onnx").graph
    made = {name: node for node in graph.node for name in node.output}
    layers = [node for node in graph.node if node.op_type in ("Conv", "Gemm", "MatMul")]
    assert len(layers) == 3
    types = {initializer.name: initializer.data_type for initializer in graph.initializer}
    for layer in layers:
        source, weight = made[layer.input[0]], made[layer.input[1]]
        while weight.op_type in ("Transpose", "Cast"):
            weight = made[weight.input[0]]
        assert source.op_type == weight.op_type == "DequantizeLinear"
        assert made[source.input[0]].op_type == "QuantizeLinear"
        assert types[weight.input[0]] == onnx.TensorProto.INT8


def test_ranges_without_outliers(net: tuple[nn.Module, IR, list[tuple[Tensor]]]) -> None:
    """One huge value does not decide the range of `percentile` and `mse`; infinity is refused by layer."""
    model, ir, inputs = net
    spoilt = inputs[0][0].clone()
    spoilt[0, 0, 0, 0] = 1e4
    many = [(spoilt,), *((torch.randn(8, 3, 12, 12)[:1],) for _ in range(30))]
    highs = {}
    for method in ("minmax", "percentile", "mse"):
        found = observe_ranges(ir, model.state_dict(), iter(many), method=method, percentile=99.9)
        highs[method] = next(iter(found.values()))[1]
    assert highs["minmax"] == 1e4
    assert highs["percentile"] < 100
    with pytest.raises(QuantizationError, match="cannot observe the input of 'conv2d_2': it contains NaN or infinity"):
        observe_ranges(ir, model.state_dict(), [(spoilt * torch.inf,)])
    with pytest.raises(QuantizationError, match="did you mean 'minmax'"):
        observe_ranges(ir, model.state_dict(), inputs, method="minmx")
    with pytest.raises(QuantizationError, match="static activations need the range of the input of 'conv2d_2'"):
        quantize(ir, "w8a8")


# -- recipes -----------------------------------------------------------------------------------------------------------


def test_recipes_are_data(tmp_path: Path, small: tuple[nn.Module, IR, Tensor]) -> None:
    """A recipe survives JSON, TOML and the graph file."""
    recipe = Recipe((LayerRule("head", None), LayerRule("*", Scheme("int4", group=8), operator="aten.conv*")))
    recipe.save(tmp_path / "recipe.json")
    assert Recipe.load(tmp_path / "recipe.json") == recipe
    (tmp_path / "recipe.toml").write_text(
        '[[layers]]\nmatch = "head"\nscheme = "float"\n'
        '[[layers]]\noperator = "aten.conv*"\nscheme = { weight = "int4", group = 8 }\n'
    )
    assert Recipe.load(tmp_path / "recipe.toml") == recipe
    quantized, report = quantize(small[1], recipe)
    assert Recipe.from_ir(torch_ir.deserialize_ir(torch_ir.serialize_ir(quantized))) == recipe
    assert [layer.name for layer in report.layers if layer.scheme] == ["conv"]
    with pytest.raises(QuantizationError, match="quantised already"):
        quantize(quantized, recipe)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("int9", "did you mean 'int8'"),
        ("int4-h64", "unknown part 'h64'"),
        ({"haed": "int8"}, "'haed' of the recipe matches none of 5 layers; did you mean 'head'"),
        ({"layers": [{"macth": "*", "scheme": "int8"}]}, "did you mean 'match'"),
        ({"layers": [{"match": "*"}]}, "needs a scheme"),
        ({"layers": [{"match": "*", "scheme": {"weights": "int8"}}]}, "did you mean 'weight'"),
        ({"*": {"weight": "int8", "group": 7}}, "group must be an even number"),
        ({"*": {"weight": "float8_e4m3fn", "activation": "int8"}}, "cannot be combined"),
    ],
)
def test_invalid_recipes(small: tuple[nn.Module, IR, Tensor], given: Any, message: str) -> None:
    with pytest.raises(QuantizationError, match=message):
        quantize(small[1], given)


def test_a_layer_that_does_not_fit_stays_in_float(small: tuple[nn.Module, IR, Tensor]) -> None:
    """The report says why."""
    model, ir, ids = small
    quantized, report = quantize(ir, "int4-g32")
    assert [layer.name for layer in report.declined] == ["table", "conv", "matmul", "head"]
    assert "do not divide into groups of 32" in str(report)
    assert IRExecutor(quantized, model.state_dict())(ids).shape == (2, 7, 10)


def test_module_classes_are_dropped(small: tuple[nn.Module, IR, Tensor]) -> None:
    """A target must not lower a quantised module by its class, which would ignore the quantisation."""
    ir = small[1]
    quantized, _ = quantize(ir, {"head": "int8"})
    assert "head" in ir.modules
    assert "head" not in quantized.modules
    assert "conv" in quantized.modules


# -- sensitivity -------------------------------------------------------------------------------------------------------


def test_sensitivity_is_that_of_one_layer(net: tuple[nn.Module, IR, list[tuple[Tensor]]]) -> None:
    """Each row equals the comparison of whole runs with only that layer quantised."""
    model, ir, inputs = net
    found = sensitivity(ir, model.state_dict(), inputs, ["int8", "int4"])
    assert [row.scheme for row in found.rows] == ["int8", "int4"] * 3
    for row in found.rows:
        alone, _ = quantize(ir, {row.name: row.scheme})
        assert row.movement.sqnr == pytest.approx(movement(ir, alone, model.state_dict(), inputs).sqnr, abs=1e-3)
    budget = quantize(ir, "int8")[1].bytes_after - 200
    recipe = found.recipe(budget)
    mixed, report = quantize(ir, recipe)
    assert report.bytes_after <= budget
    measured = movement(ir, mixed, model.state_dict(), inputs).sqnr
    assert measured == pytest.approx(found.predicted(recipe), abs=3)
    assert measured > movement(ir, quantize(ir, "int4")[0], model.state_dict(), inputs).sqnr + 3
    with pytest.raises(QuantizationError, match="too small: the layers take at least"):
        found.recipe(10)


# -- command line ------------------------------------------------------------------------------------------------------


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """Return what a command prints."""
    assert main(list(arguments)) == 0
    return capsys.readouterr().out


def test_commands(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, net: tuple[nn.Module, IR, list[tuple[Tensor]]]
) -> None:
    """Observe, quantise, run; then measure, choose a recipe, and quantise by it."""
    numpy = pytest.importorskip("numpy")
    model, ir, inputs = net
    ir.save(tmp_path / "net.json")
    torch.save(model.state_dict(), tmp_path / "net.pt")
    numpy.savez(tmp_path / "0.npz", x=inputs[0][0].numpy())
    common = [str(tmp_path / "net.json"), "--weights", str(tmp_path / "net.pt"), "--sample", f"@{tmp_path / '0.npz'}"]
    made = ["-o", str(tmp_path / "q.json"), "--save-ranges", str(tmp_path / "ranges.json"), "--json"]
    report = json.loads(printed(capsys, "quantize", *common, "--recipe", "w8a8", "--layer", "last=float", *made))
    assert [layer["scheme"] for layer in report["layers"]] == ["int8-static-uint8"] * 2 + [None]
    again, _ = quantize(ir, {"last": None, "*": "w8a8"}, ranges=json.loads((tmp_path / "ranges.json").read_text()))
    first = IRExecutor(torch_ir.load_ir(tmp_path / "q.json"), model.state_dict())(inputs[0][0])
    assert torch.equal(first, IRExecutor(again, model.state_dict())(inputs[0][0]))
    text = printed(capsys, "sensitivity", *common, "--budget", "4KB", "-o", str(tmp_path / "recipe.json"))
    assert "does not measure the accuracy" in text
    assert "measured: SQNR" in text
    report = json.loads(printed(capsys, "quantize", common[0], "--recipe", str(tmp_path / "recipe.json"), "--json"))
    assert report["bytes_after"] <= 4096
    assert "matches none of 3 layers" in failure(
        capsys, "quantize", common[0], "--recipe", "int8", "--layer", "lst=float"
    )
    assert "--weights and --sample" in failure(capsys, "quantize", common[0], "--recipe", "w8a8", "--sample", "@0.npz")
