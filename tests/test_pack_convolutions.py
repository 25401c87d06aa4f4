"""Convolutions with prepacked weights and Winograd's algorithm: the same results, or not packed."""

import math
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.export import Dim
from torch.nn import functional as F

import catalogue
from tests.rewriting import lines, optimized, proved, small, text
from torch_ir import IR, extract_ir, optimize
from torch_ir.analysis.cost_model.flop_formulas import macs
from torch_ir.analysis.shapes.inference import wrong_shapes
from torch_ir.analysis.values.prologue import split_prologue
from torch_ir.backends import compile
from torch_ir.backends.onednn import PASSES
from torch_ir.passes.optimize_levels import LEVELS
from torch_ir.rewrite import SPREADS
from torch_ir.run.benchmark import difference
from torch_ir.run.executor import IRExecutor
from torch_ir.run.tolerances import compare
from torch_ir.run.weight_files import random_weights

WEIGHTS = "w: float32[4, 3, 3, 3], b: float32[4]"
CONV = "aten.conv2d.default(x, w, b, padding=[1, 1])"
ACTIVATIONS = {
    "aten.relu.default(conv)": "relu",
    "aten.relu6.default(conv)": "hardtanh",
    "aten.hardtanh.default(conv, -2.0, 3.0)": "hardtanh",
    "aten.clamp.default(conv, -1.0, 0.5)": "hardtanh",
    "aten.clamp.default(conv, 0)": "relu",
    "aten.clamp_min.default(conv, 0)": "relu",
    "aten.leaky_relu.default(conv, 0.3)": "leaky_relu",
    "aten.sigmoid.default(conv)": "sigmoid",
    "aten.tanh.default(conv)": "tanh",
    "aten.silu.default(conv)": "swish",
    "aten.hardswish.default(conv)": "hardswish",
    "aten.hardsigmoid.default(conv)": "hardsigmoid",
    "aten.gelu.default(conv)": "gelu",
    "aten.gelu.default(conv, approximate='tanh')": "gelu",
}


def _packed(ir: IR) -> IR:
    return optimized(ir, ["pack-convolutions"])


def _every(ir: IR) -> list[str]:
    """The operators that run every time."""
    return [node.op_type.partition(".")[2] for node in split_prologue(ir)[1]]


def _reasons(ir: IR, name: str) -> list[str]:
    """Why a pass declines; the graph stays as it is."""
    after, report = proved(ir, [name], exact=True)
    assert text(after) == text(ir)
    return [decline.why for decline in report.declined]


def _runs_as_it_says(ir: IR) -> None:
    """Every value of a run has the declared shape and strides."""
    wrong = []

    def watch(tensor, value, sizes) -> None:  # type: ignore[no-untyped-def]  # as the executor calls it
        told = torch.empty(tensor.shape).stride() if tensor.stride is None else tensor.stride
        lies = value.layout is not torch.strided or all(
            size == 1 or is_ == said for size, is_, said in zip(value.shape, value.stride(), told, strict=True)
        )
        if tuple(value.shape) != tensor.shape or not lies:
            wrong.append((tensor, value.shape, value.stride()))

    weights = {param.key: torch.randn(param.shape) for param in ir.params if param.key and not param.param.data}  # type: ignore[arg-type,union-attr]  # all sizes are numbers here
    IRExecutor(ir, weights, watch=watch).run([torch.randn(tensor.shape) for tensor in ir.graph_inputs])  # type: ignore[arg-type]
    assert not wrong


def test_weights_are_packed_in_the_prologue() -> None:
    """relu(conv(x)) is one call of oneDNN, over a weight that is packed once."""
    ir = small("x: float32[2, 3, 6, 6]", weights=WEIGHTS, conv=CONV, relu="aten.relu.default(conv)")
    after = _packed(ir)
    assert text(after) == lines("""
        graph(x: float32[2, 3, 6, 6]) {
          param w: float32[4, 3, 3, 3] = "w"
          param b: float32[4] = "b"
          _reorder_convolution_weight: float32[4, 3, 3, 3] = mkldnn._reorder_convolution_weight.default(self=w, padding=[1, 1], stride=[1, 1], dilation=[1, 1], groups=1, input_size=[2, 3, 6, 6])
          contiguous: float32[4] = aten.contiguous.default(self=b, memory_format=contiguous_format)
          _convolution_pointwise_1: float32[2, 4, 6, 6] strides [144, 1, 24, 4] = mkldnn._convolution_pointwise.default(X=x, W=_reorder_convolution_weight, B=contiguous, padding=[1, 1], stride=[1, 1], dilation=[1, 1], groups=1, attr='relu', scalars=[], algorithm='')
          return _convolution_pointwise_1
        }
    """)  # noqa: E501  # the text of a graph
    assert _every(after) == ["_convolution_pointwise.default"]
    _runs_as_it_says(after)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_activations_are_computed_on_the_way(activation: str) -> None:
    """oneDNN's activations equal torch's."""
    ir = small("x: float32[2, 3, 6, 6]", weights=WEIGHTS, conv=CONV, made=activation)
    after = _packed(ir)
    assert _every(after) == ["_convolution_pointwise.default"]
    assert after.nodes[-1]["attr"] == ACTIVATIONS[activation]


@pytest.mark.parametrize("activation", ["aten.elu.default(conv)", "aten.clamp.default(conv, None, 2.0)"])
def test_other_activations_stay(activation: str) -> None:
    """Activations that oneDNN does not support after a convolution are computed by torch."""
    ir = small("x: float32[2, 3, 6, 6]", weights=WEIGHTS, conv=CONV, made=activation)
    assert len(_every(_packed(ir))) == 2


@pytest.mark.parametrize("order", ["conv, y", "y, conv"])
def test_sums_are_computed_on_the_way(order: str) -> None:
    """relu(conv(x) + y) is one call."""
    ir = small(
        "x: float32[2, 3, 6, 6], y: float32[2, 4, 6, 6]",
        weights=WEIGHTS,
        conv=CONV,
        add=f"aten.add.Tensor({order})",
        relu="aten.relu.default(add)",
    )
    after = _packed(ir)
    assert _every(after) == ["_convolution_pointwise.binary"]
    assert (after.nodes[-1]["binary_attr"], after.nodes[-1]["unary_attr"]) == ("add", "relu")
    _runs_as_it_says(after)


@pytest.mark.parametrize("other", ["y: float32[4, 1, 1]", "y: float32[2, 4, 6, 6], z: float32[1]"])
def test_sums_that_stay(other: str) -> None:
    """A sum with something of another shape, with a factor, or of a convolution that is read elsewhere stays."""
    ir = small(
        f"x: float32[2, 3, 6, 6], {other}",
        ["add", "conv"] if "z" in other else "add",
        weights=WEIGHTS,
        conv=CONV,
        add="aten.add.Tensor(conv, y)",
    )
    assert _every(_packed(ir)) == ["_convolution_pointwise.default", "add.Tensor"]


def test_only_a_relu_follows_a_sum() -> None:
    """oneDNN supports no other activation after a sum, and the report says so."""
    ir = small(
        "x: float32[2, 3, 6, 6], y: float32[2, 4, 6, 6]",
        weights=WEIGHTS,
        conv=CONV,
        add="aten.add.Tensor(conv, y)",
        silu="aten.silu.default(add)",
    )
    after, report = proved(ir, ["pack-convolutions"])
    assert _every(after) == ["_convolution_pointwise.binary", "silu.default"]
    assert [decline.why for decline in report.declined] == ["after a sum, oneDNN fuses only relu"]


@pytest.mark.parametrize(
    "call",
    [
        "aten.conv2d.default(x, w, None, [2, 1], [0, 3], [1, 2])",
        "aten.conv2d.default(x, v, None, [1], [1], [1], 3)",
        "aten.convolution.default(x, w, None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1)",
        "aten.conv_transpose2d.input(x, t, None, [2, 2], [1, 1], [1, 0], 1, [1, 2])",
        "aten.conv_transpose2d.input(x, t, c, [2, 1], [0, 1], [0, 0], 3)",
        "aten.conv3d.default(z, u, None, [1, 2, 1], [1, 0, 1])",
    ],
)
def test_geometry(call: str) -> None:
    """Strides, padding, dilation, groups, transposed and three-dimensional convolutions are packed too."""
    ir = small(
        "x: float32[2, 3, 9, 8], z: float32[1, 3, 4, 6, 5]",
        weights="w: float32[4, 3, 3, 3], v: float32[6, 1, 3, 3], t: float32[3, 4, 3, 3], u: float32[2, 3, 2, 3, 3], "
        "c: float32[12]",
        conv=call,
        relu="aten.relu.default(conv)",
    )
    after = _packed(ir)
    assert [name.partition(".")[0] for name in _every(after)] in (
        ["_convolution_pointwise"],
        ["_convolution_transpose_pointwise"],
    )
    assert not list(wrong_shapes(after))
    assert macs(after.nodes[-1]) == macs(ir.nodes[0])
    _runs_as_it_says(after)


@pytest.mark.parametrize(
    ("inputs", "weights", "call", "why"),
    [
        ("x: float64[2, 3, 6, 6]", "w: float64[4, 3, 3, 3]", "aten.conv2d.default(x, w)", "convolutions of float64"),
        ("x: float16[2, 3, 6, 6]", "w: float16[4, 3, 3, 3]", "aten.conv2d.default(x, w)", "convolutions of float16"),
        ("x: float32[2, 3, 6]", "w: float32[4, 3, 3]", "aten.conv1d.default(x, w)", "2-d and 3-d"),
        ("x: float32[3, 6, 6]", "w: float32[4, 3, 3, 3]", "aten.conv2d.default(x, w)", "batched"),
        ("x: float32[2, 3, 6, 6]", "w: float32[4, 3, 3, 3]", "aten.conv2d.padding(x, w, padding='same')", "'same'"),
        ("x: float32[2, 3, 6, 6], w: float32[4, 3, 3, 3]", "", "aten.conv2d.default(x, w)", "is not a constant weight"),
        ("x: float32[1, 32, 7, 7]", "w: float32[32, 32, 1, 1]", "aten.conv2d.default(x, w)", "few products"),
    ],
)
def test_what_is_not_packed(inputs: str, weights: str, call: str, why: str) -> None:
    """Convolutions that oneDNN does not support are unchanged, with the reason in the report."""
    reasons = _reasons(small(inputs, weights=weights, conv=call), "pack-convolutions")
    assert [why in reason for reason in reasons] == [True]


def test_bfloat16() -> None:
    """Convolutions in bfloat16 are packed where the CPU computes them."""
    if not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        pytest.skip("oneDNN has no bfloat16 on this CPU")
    ir = small("x: bfloat16[2, 3, 6, 6]", weights="w: bfloat16[4, 3, 3, 3]", conv="aten.conv2d.default(x, w)")
    assert _every(_packed(ir)) == ["_convolution_pointwise.default"]


def test_a_view_that_needs_its_strides() -> None:
    """A convolution whose result is viewed by row is not packed, because a packed one returns channels last."""
    ir = small("x: float32[2, 3, 6, 6]", weights=WEIGHTS, conv=CONV, view="aten.view.default(conv, [2, 144])")
    assert len(_reasons(ir, "pack-convolutions")) == 1


def test_a_bias_with_gaps() -> None:
    """A bias is read correctly for any strides of the bound weights."""
    model = nn.Conv2d(3, 4, 3).eval()
    x = torch.randn(2, 3, 6, 6)
    weights = {"weight": model.weight.detach(), "bias": torch.randn(8)[::2]}
    compiled = compile(extract_ir(model, (x,), strict=False), weights, backend="onednn")
    expected = F.conv2d(x, weights["weight"], weights["bias"])
    assert not compare(expected, compiled(x)).reason


@pytest.mark.parametrize("name", ["pack-convolutions", "winograd"])
def test_passes_are_for_those_who_ask(name: str) -> None:
    """No level packs weights, as a packed graph is for one kind of CPU."""
    assert name in PASSES
    assert not any(name in level for level in LEVELS.values())


@pytest.mark.parametrize(
    ("name", "size"),
    [
        ("resnet18", 40),
        ("mobilenet_v2", 32),
        *((name, 0) for name in ("squeeze_excite", "unet", "densenet", "inception", "convnext", "transposed_conv")),
        *((name, 0) for name in ("conv1d", "conv3d", "detection_head")),
    ],
)
def test_models(name: str, size: int) -> None:
    """A network returns the same results."""
    torch.manual_seed(0)
    entry = catalogue.find(name)
    model = entry.build()
    inputs = (torch.randn(1, 3, size, size),) if size else entry.inputs()
    ir = extract_ir(model, inputs, kwargs=entry.kwargs(), strict=False)
    with torch.no_grad():
        expected, found = model(*inputs), compile(ir, model.state_dict(), backend="onednn")(*inputs)
    assert not difference(expected, found, 1e-4, 1e-5)


def test_open_sizes() -> None:
    """A graph with open batch and image sizes runs at any of them."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 3, stride=2), nn.SiLU()).eval()
    open_sizes = {0: Dim("batch", max=16), 2: Dim("height", min=8, max=64), 3: Dim("width", min=8, max=64)}
    ir = extract_ir(model, (torch.randn(2, 3, 16, 16),), dynamic_shapes=(open_sizes,), strict=False)
    assert "its sizes, and so the number of tiles, are symbolic" in _reasons(ir, "winograd")
    compiled = compile(ir, model.state_dict(), backend="onednn")
    for shape in ((1, 3, 16, 16), (5, 3, 9, 31), (3, 3, 64, 8)):
        x = torch.randn(shape)
        with torch.no_grad():
            assert not compare(model(x), compiled(x)).reason


def test_a_packed_graph_is_a_graph(tmp_path: Path) -> None:
    """It is saved without a packed weight, loaded, and run with the weights of the model."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 128, 1), nn.ReLU(), nn.Conv2d(128, 128, 3, padding=1)).eval()
    x = torch.randn(1, 3, 28, 28)
    ir = extract_ir(model, (x,), strict=False)
    optimize(ir, passes=["winograd", "pack-convolutions"])[0].save(tmp_path / "packed.json")
    with torch.no_grad():
        (found,) = IRExecutor(IR.load(tmp_path / "packed.json"), model.state_dict()).execute((x,))
        assert not compare(model(x), found, 1e-4, 1e-5).reason


@pytest.mark.parametrize(
    ("batch", "reads", "makes", "height", "width", "padding", "bias"),
    [
        (1, 128, 128, 28, 28, 1, True),
        (1, 128, 96, 33, 30, 1, False),
        (2, 96, 128, 30, 29, 0, True),
        (8, 256, 64, 14, 14, 2, True),
    ],
)
def test_winograd(batch: int, reads: int, makes: int, height: int, width: int, padding: int, bias: bool) -> None:
    """Winograd's algorithm agrees to five digits, at any size and padding."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(reads, makes, 3, padding=padding, bias=bias), nn.ReLU()).eval()
    x = torch.randn(batch, reads, height, width)
    after = optimize(extract_ir(model, (x,), strict=False), passes=PASSES)[0]
    assert [node["groups"] for node in after.nodes if node.op_type == "mkldnn._convolution_pointwise.default"] == [36]
    assert not list(wrong_shapes(after))
    with torch.no_grad():
        (found,) = IRExecutor(after, model.state_dict()).execute((x,))
        expected = model.double()(x.double())
    assert (found - expected).abs().max() < 5e-5 * expected.abs().max()


def test_winograd_spreads_nan_within_its_tile() -> None:
    """The report declares it; other results stay, and those that should be NaN are."""
    conv = "aten.conv2d.default(x, w, None, padding=[1, 1])"
    ir = small("x: float32[1, 128, 28, 28]", weights="w: float32[128, 128, 3, 3]", conv=conv)
    after, report = optimize(ir, passes=["winograd"])
    assert {what for change in report.changes for what in change.non_finite} == {SPREADS}
    weights, x = random_weights(ir), torch.randn(1, 128, 28, 28, generator=torch.Generator().manual_seed(0))
    x[0, 5, 13, 14] = math.nan
    expected, found = (IRExecutor(graph, weights).run([x]).outputs[0] for graph in (ir, after))
    missing = found.isnan()
    assert bool(missing[expected.isnan()].all())
    assert (int(expected.isnan()[0, 0].sum()), int(missing[0, 0].sum())) == (3 * 3, 4 * 4)
    torch.testing.assert_close(found[~missing], expected[~missing], rtol=1e-3, atol=1e-4)


def test_winograd_happens_once() -> None:
    """Two convolutions share the matrices of the algorithm, and a second round finds nothing to do."""
    ir = small(
        "x: float32[1, 128, 28, 28]",
        weights="w: float32[128, 128, 3, 3], v: float32[128, 128, 3, 3]",
        first="aten.conv2d.default(x, w, None, padding=[1, 1])",
        second="aten.conv2d.default(first, v, None, padding=[1, 1])",
    )
    after, report = optimize(ir, passes=["winograd"])
    assert [change.rule for change in report.changes] == ["by_winograd"] * 2
    assert [param.key for param in after.params][2:] == ["winograd.tiles", "winograd.weights", "winograd.results"]
    assert not optimize(after, passes=["winograd"])[1].changes
    _runs_as_it_says(after)


@pytest.mark.parametrize(
    ("x", "w", "why"),
    [
        ("1, 16, 56, 56", "16, 16, 3, 3", "would take longer"),
        ("1, 512, 7, 7", "512, 512, 3, 3", "would take longer"),
        ("1, 128, 28, 28", "128, 128, 5, 5", ""),
    ],
)
def test_what_winograd_leaves(x: str, w: str, why: str) -> None:
    """Where the algorithm would be slower, or is for other convolutions, the convolution stays."""
    ir = small(f"x: float32[{x}]", weights=f"w: float32[{w}]", conv="aten.conv2d.default(x, w, None, padding=[1, 1])")
    reasons = _reasons(ir, "winograd")
    assert [why in reason for reason in reasons] == [True] * bool(why)
