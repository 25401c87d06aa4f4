"""Batch norm of inference is folded into the weights of the layer before or after it, without weight values."""

from typing import Any

import pytest
import torch
from torch.export import Dim

from catalogue import find
from tests.rewriting import lines, optimized, proved, small, text
from torch_ir import IR, extract_ir
from torch_ir.analysis.values.prologue import split_prologue
from torch_ir.errors import CaptureWarning
from torch_ir.passes import optimize
from torch_ir.passes.weights.fold_batch_norm import fold_batch_norm

_NORM = "training={training}, momentum=0.1, eps=0.001, cudnn_enabled=False)"


def _statistics(channels: int, dtype: str = "float32") -> str:
    names = ("gamma", "beta", "mean", "var")
    return ", ".join(f"{name}: {dtype}[{channels}]" for name in names)


def _norm(source: str, training: bool = False) -> str:
    return f"aten.batch_norm.default({source}, gamma, beta, mean, var, " + _NORM.format(training=training)


def _captured(model: torch.nn.Module, *shape: int, **options: Any) -> IR:
    """The graph of a model that has no values."""
    return extract_ir(model.to("meta").eval(), (torch.empty(shape, device="meta"),), **options)


def _every(ir: IR) -> list[str]:
    """The operators that run every time."""
    return [node.op_type.split(".")[1] for node in split_prologue(ir)[1]]


def test_after_a_convolution() -> None:
    """batch_norm(conv(x)) is a convolution with other weights, which are computed once."""
    ir = small(
        "x: float32[2, 3, 6, 6]",
        weights=f"w: float32[4, 3, 3, 3], b: float32[4], {_statistics(4)}",
        conv="aten.conv2d.default(x, w, b, padding=[1, 1])",
        norm=_norm("conv"),
    )
    after = optimized(ir, [fold_batch_norm])
    assert text(after) == lines("""
        graph(x: float32[2, 3, 6, 6]) {
          param w: float32[4, 3, 3, 3] = "w"
          param b: float32[4] = "b"
          param gamma: float32[4] = "gamma"
          param beta: float32[4] = "beta"
          param mean: float32[4] = "mean"
          param var: float32[4] = "var"
          add: float32[4] = aten.add.Tensor(self=var, other=0.001, alpha=1)
          rsqrt: float32[4] = aten.rsqrt.default(self=add)
          mul: float32[4] = aten.mul.Tensor(self=gamma, other=rsqrt)
          mul_1: float32[4] = aten.mul.Tensor(self=mean, other=mul)
          sub: float32[4] = aten.sub.Tensor(self=beta, other=mul_1, alpha=1)
          reshape: float32[4, 1, 1, 1] = aten.reshape.default(self=mul, shape=[4, 1, 1, 1])
          mul_2: float32[4, 3, 3, 3] = aten.mul.Tensor(self=w, other=reshape)
          mul_3: float32[4] = aten.mul.Tensor(self=b, other=mul)
          add_1: float32[4] = aten.add.Tensor(self=mul_3, other=sub, alpha=1)
          conv2d: float32[2, 4, 6, 6] = aten.conv2d.default(input=x, weight=mul_2, bias=add_1, \
stride=[1, 1], padding=[1, 1], dilation=[1, 1], groups=1)
          return conv2d
        }
    """)
    assert _every(after) == ["conv2d"]


_AFTER = {
    "conv1d": ("x: float32[2, 4, 9]", "w: float32[6, 2, 3]", "aten.conv1d.default(x, w, groups=2)"),
    "conv2d of depth": ("x: float32[2, 6, 5, 5]", "w: float32[6, 1, 3, 3]", "aten.conv2d.default(x, w, groups=6)"),
    "conv2d same": ("x: float32[2, 4, 5, 5]", "w: float32[6, 4, 3, 3]", "aten.conv2d.padding(x, w, padding='same')"),
    "conv3d": ("x: float32[2, 2, 4, 4, 4]", "w: float32[6, 2, 2, 2, 2]", "aten.conv3d.default(x, w)"),
    "convolution": (
        "x: float32[2, 4, 5, 5]",
        "w: float32[6, 4, 3, 3]",
        "aten.convolution.default(x, w, None, [2, 2], [1, 1], [1, 1], False, [0, 0], 1)",
    ),
    "convolution transposed": (
        "x: float32[2, 4, 5, 5]",
        "w: float32[4, 3, 3, 3]",
        "aten.convolution.default(x, w, None, [2, 2], [1, 1], [1, 1], True, [1, 1], 2)",
    ),
    "conv_transpose1d": ("x: float32[2, 4, 5]", "w: float32[4, 6, 3]", "aten.conv_transpose1d.default(x, w)"),
    "conv_transpose2d in groups": (
        "x: float32[2, 4, 5, 5]",
        "w: float32[4, 3, 3, 3]",
        "aten.conv_transpose2d.input(x, w, stride=[2, 2], groups=2)",
    ),
    "linear": ("x: float32[3, 4]", "w: float32[6, 4]", "aten.linear.default(x, w)"),
}


@pytest.mark.parametrize("name", _AFTER)
def test_after_every_layer(name: str) -> None:
    """The scale applies to the weight's output-channel dimension."""
    inputs, weight, call = _AFTER[name]
    ir = small(inputs, weights=f"{weight}, {_statistics(6)}", layer=call, norm=_norm("layer"))
    assert _every(optimized(ir, [fold_batch_norm])) == [call.split(".")[1]]


_BEFORE = {
    "conv2d": ("x: float32[2, 4, 5, 5]", "w: float32[6, 4, 3, 3]", "aten.conv2d.default(norm, w, b)"),
    "conv2d in groups": ("x: float32[2, 4, 5, 5]", "w: float32[6, 2, 3, 3]", "aten.conv2d.default(norm, w, groups=2)"),
    "conv1d valid": ("x: float32[2, 4, 5]", "w: float32[6, 4, 3]", "aten.conv1d.padding(norm, w, padding='valid')"),
    "linear": ("x: float32[3, 4]", "w: float32[6, 4]", "aten.linear.default(norm, w, b)"),
}


@pytest.mark.parametrize("name", _BEFORE)
def test_before_a_layer(name: str) -> None:
    """The scale applies to the input channels, and the shift, summed over the weight, to the bias."""
    inputs, weight, call = _BEFORE[name]
    ir = small(inputs, weights=f"{weight}, b: float32[6], {_statistics(4)}", norm=_norm("x"), layer=call)
    assert _every(optimized(ir, [fold_batch_norm])) == [call.split(".")[1]]


@pytest.mark.parametrize("dtype", ["float64", "bfloat16"])
def test_other_dtypes(dtype: str) -> None:
    """Weights of few bits are folded in float32 and rounded once; the layer keeps its dtype."""
    ir = small(
        f"x: {dtype}[2, 3, 4, 4]",
        weights=f"w: {dtype}[4, 3, 3, 3], b: {dtype}[4], {_statistics(4, dtype)}",
        conv="aten.conv2d.default(x, w, b)",
        norm=_norm("conv"),
    )
    after = optimized(ir, [fold_batch_norm])
    (conv,) = split_prologue(after)[1]
    assert {conv["weight"].dtype, conv["bias"].dtype, conv.outputs[0].dtype} == {dtype}
    computed = {node.outputs[0].dtype for node in after.nodes if node.op_type == "aten.mul.Tensor"}
    assert computed == {"float64" if dtype == "float64" else "float32"}


def test_weights_in_float16_stay() -> None:
    """The scale of a channel is not known, and weights times it may leave the range of float16."""
    ir = small(
        "x: float16[2, 3, 4, 4]",
        weights=f"w: float16[4, 3, 3, 3], {_statistics(4, 'float16')}",
        conv="aten.conv2d.default(x, w)",
        norm=_norm("conv"),
    )
    assert text(optimized(ir, [fold_batch_norm])) == text(ir)


def test_statistics_may_have_more_bits() -> None:
    """A batch norm in float32 after a convolution in bfloat16."""
    ir = small(
        "x: bfloat16[2, 3, 4, 4]",
        weights=f"w: bfloat16[4, 3, 3, 3], {_statistics(4)}",
        conv="aten.conv2d.default(x, w)",
        norm=_norm("conv"),
    )
    assert _every(optimized(ir, [fold_batch_norm])) == ["conv2d"]


def test_native_spellings() -> None:
    """Variants that also return statistics are folded if these are unused."""
    for name, training in (("_native_batch_norm_legit_no_training", ""), ("native_batch_norm", "training=False, ")):
        call = f"aten.{name}.default(conv, gamma, beta, mean, var, {training}momentum=0.1, eps=0.001)"
        ir = small(
            "x: float32[2, 3, 4, 4]",
            "norm_0",
            weights=f"w: float32[4, 3, 3, 3], {_statistics(4)}",
            conv="aten.conv2d.default(x, w)",
            norm=call,
        )
        assert _every(optimized(ir, [fold_batch_norm])) == ["conv2d"]


def test_without_affine_weights() -> None:
    """A batch norm that has statistics alone."""
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4, affine=False))
    after = optimized(_captured(model, 2, 3, 5, 5), [fold_batch_norm])
    assert _every(after) == ["conv2d"]


def test_a_shared_convolution_is_folded_twice() -> None:
    """One weight under two batch norms becomes two weights."""
    conv, one, other = torch.nn.Conv2d(3, 3, 3), torch.nn.BatchNorm2d(3), torch.nn.BatchNorm2d(3, eps=0.1)
    ir = _captured(torch.nn.Sequential(conv, one, torch.nn.ReLU(), conv, other), 2, 3, 7, 7)
    after = optimized(ir, [fold_batch_norm])
    assert _every(after) == ["conv2d", "relu", "conv2d"]
    assert [param.key for param in after.params] == [param.key for param in ir.params]


_DECLINED: dict[str, tuple[dict[str, Any], str]] = {
    "training": (
        {
            "conv": "aten.conv2d.default(x, w)",
            "norm": _norm("conv").replace("mean, var, training=False", "None, None, training=True"),
        },
        "the batch norm is in training mode and uses the statistics of the batch",
    ),
    "fan-out": (
        {"conv": "aten.conv2d.default(x, w)", "norm": _norm("conv"), "both": "aten.add.Tensor(conv, norm)"},
        "'conv' is read elsewhere too",
    ),
    "padding": (
        {"norm": _norm("x"), "conv": "aten.conv2d.default(norm, w, padding=[1, 1])"},
        "the convolution pads with zeros, which the batch norm does not shift",
    ),
    "fan-out before": (
        {
            "norm": _norm("x"),
            "conv": "aten.conv2d.padding(norm, w, padding='valid')",
            "cat": "aten.mul.Tensor(norm, 2)",
            "sum": "aten.sum.default(cat)",
            "both": "aten.add.Tensor(conv, sum)",
        },
        "'norm' is read elsewhere too",
    ),
    "transposed before": (
        {"norm": _norm("x"), "conv": "aten.conv_transpose2d.input(norm, w)"},
        "a transposed convolution adds the shift a number of times that depends on the position",
    ),
    "given weight": (
        {"conv": "aten.conv2d.default(x, given)", "norm": _norm("conv")},
        "'given' is not a constant weight",
    ),
    "given statistics": (
        {"conv": "aten.conv2d.default(x, w)", "norm": _norm("conv").replace("mean", "moving")},
        "'moving' is not a constant weight",
    ),
    "other dimension": (
        {"linear": "aten.linear.default(x, v)", "norm": _norm("linear")},
        "the batch norm is over dimension 1, which does not hold the channels of 'linear'",
    ),
    "statistics read": (
        {
            "conv": "aten.conv2d.default(x, w)",
            "norm": "aten.native_batch_norm.default(conv, gamma, beta, mean, var, False, 0.1, 0.001)",
            "both": "aten.sum.default(norm_1)",
        },
        "the statistics that the batch norm returns are used",
    ),
}


@pytest.mark.parametrize("name", _DECLINED)
def test_declines(name: str) -> None:
    """If a batch norm cannot be folded, the report says why."""
    calls, why = _DECLINED[name]
    ir = small(
        "x: float32[2, 4, 5, 5], given: float32[4, 4, 3, 3], moving: float32[4]",
        weights=f"w: float32[4, 4, 3, 3], v: float32[5, 5], {_statistics(4)}",
        **calls,
    )
    after, report = proved(ir, [fold_batch_norm])
    assert text(after) == text(ir)
    assert [decline.why for decline in report.declined] == [why]


def test_a_graph_output_is_a_reader() -> None:
    """The caller needs the convolution's result too."""
    ir = small(
        "x: float32[2, 3, 4, 4]",
        ["conv", "norm"],
        weights=f"w: float32[4, 3, 3, 3], {_statistics(4)}",
        conv="aten.conv2d.default(x, w)",
        norm=_norm("conv"),
    )
    assert text(optimized(ir, [fold_batch_norm])) == text(ir)


def test_a_buffer_that_the_model_writes_is_no_weight() -> None:
    """Statistics that a model updates differ in every run."""

    class Moving(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.norm = torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            made = self.norm(self.conv(x))
            assert self.norm.running_mean is not None
            self.norm.running_mean.add_(1.0)
            return made  # type: ignore[no-any-return]

    after, report = proved(_captured(Moving(), 2, 3, 5, 5), [fold_batch_norm])
    assert "batch_norm" in _every(after)
    assert [decline.why for decline in report.declined] == ["'b_norm_running_mean' is not a constant weight"]


def test_a_model_in_training() -> None:
    """A model captured before eval() is reported as such."""
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4)).to("meta").train()
    with pytest.warns(CaptureWarning, match="training mode"):
        ir = extract_ir(model, (torch.empty(2, 3, 5, 5, device="meta"),))
    after, report = proved(ir, [fold_batch_norm])
    assert text(after) == text(ir)
    assert [decline.why for decline in report.declined] == [
        "the batch norm is in training mode and uses the statistics of the batch"
    ]


def test_a_whole_network_without_a_value() -> None:
    """Convolutions and batch norms captured on the meta device, with open sizes too: no batch norm is left."""

    def block(channels: int, stride: int) -> list[torch.nn.Module]:
        conv = torch.nn.Conv2d(channels, 2 * channels, 3, stride, padding=1, bias=False)
        return [conv, torch.nn.BatchNorm2d(2 * channels), torch.nn.ReLU6()]

    model = torch.nn.Sequential(*block(3, 1), *block(6, 2), *block(12, 2))
    for options in ({}, {"dynamic_shapes": ({0: Dim("batch"), 2: Dim("height", min=8)},)}):
        after = optimized(_captured(model, 2, 3, 16, 16, **options), [fold_batch_norm])
        assert _every(after) == ["conv2d", "hardtanh"] * 3


@pytest.mark.parametrize("name", ["resnet18", "resnet50", "mobilenet_v2"])
def test_no_batch_norm_is_left(name: str) -> None:
    """Every batch norm of the known networks is folded into its convolution."""
    entry = find(name)
    with torch.device("meta"):
        model = entry.build()
    ir = extract_ir(model, tuple(value.to("meta") for value in entry.inputs()))
    after, report = optimize(ir, passes=[fold_batch_norm])
    norms = sum(node.op_type == "aten.batch_norm.default" for node in ir.nodes)
    assert len(report.changes) == norms > 0
    assert "batch_norm" not in _every(after)
    assert report.after.nodes == report.before.nodes - norms
