"""Linear layers with prepacked weights: the same results, and which layers are not packed."""

from typing import Any

import pytest
import torch
from torch import nn
from torch.export import Dim
from torch.nn import functional as F

import catalogue
from tests.rewriting import lines, optimized, proved, small, text
from torch_ir import IR, extract_ir, optimize
from torch_ir.analysis.values.prologue import split_prologue
from torch_ir.backends import compile
from torch_ir.backends.onednn import PASSES
from torch_ir.run.benchmark import difference
from torch_ir.run.executor import IRExecutor

LAYER = "aten.linear.default(x, w, b)"
WEIGHTS = "w: float32[5, 4], b: float32[5]"
NAN_IN_BIAS = torch.tensor([float("nan"), -1.0, 0.0, 2.0, float("inf")])


def _every(ir: IR) -> list[str]:
    """The operators that run every time."""
    return [node.op_type.split(".")[1] for node in split_prologue(ir)[1]]


def _reasons(ir: IR) -> list[str]:
    """Why the pass declines; the graph stays as it is."""
    after, report = proved(ir, ["pack-linears"], exact=True)
    assert text(after) == text(ir)
    return [decline.why for decline in report.declined]


def _compiled(model: nn.Module, inputs: tuple[Any, ...], kwargs: dict[str, Any], **options: Any) -> Any:
    ir = extract_ir(model, inputs, kwargs=kwargs, strict=False, **options)
    return compile(ir, model.state_dict(), backend="onednn")


def test_weights_are_packed_before_the_run() -> None:
    """The packed weight and the bias depend only on weights; one operator per run is left."""
    ir = small("x: float32[2, 3, 4]", weights=WEIGHTS, linear=LAYER)
    after = optimized(ir, ["pack-linears"])
    assert text(after) == lines(
        """
        graph(x: float32[2, 3, 4]) {
          param w: float32[5, 4] = "w"
          param b: float32[5] = "b"
          _reorder_linear_weight: float32[5, 4] = mkldnn._reorder_linear_weight.default(self=w, batch_size=6)
          contiguous: float32[5] = aten.contiguous.default(self=b, memory_format=contiguous_format)
          _linear_pointwise: float32[2, 3, 5] = mkldnn._linear_pointwise.default(X=x, W=_reorder_linear_weight, B=contiguous, attr='none', scalars=[], algorithm='')
          return _linear_pointwise
        }
        """  # noqa: E501  # the text of the graph
    )
    assert _every(after) == ["_linear_pointwise"]


@pytest.mark.parametrize(
    ("call", "attr", "scalars", "algorithm"),
    [
        ("aten.gelu.default(linear, approximate='none')", "gelu", [], "none"),
        ("aten.gelu.default(linear, approximate='tanh')", "gelu", [], "tanh"),
        ("aten.silu.default(linear)", "swish", [], ""),
        ("aten.sigmoid.default(linear)", "sigmoid", [], ""),
        ("aten.tanh.default(linear)", "tanh", [], ""),
        ("aten.hardswish.default(linear)", "hardswish", [], ""),
        ("aten.leaky_relu.default(linear, 0.2)", "leaky_relu", [0.2], ""),
    ],
)
def test_an_activation_is_computed_on_the_way(call: str, attr: str, scalars: list[float], algorithm: str) -> None:
    """If the operator supports it exactly: NaN and infinity are the same."""
    ir = small("x: float32[2, 3, 4]", weights=WEIGHTS, linear=LAYER, curve=call)
    after = optimized(ir, ["pack-linears"])
    assert _every(after) == ["_linear_pointwise"]
    layer = after.nodes[-1]
    assert (layer["attr"], layer["scalars"], layer["algorithm"]) == (attr, scalars, algorithm)
    values = [torch.zeros(2, 3, 4)]
    weights = {"w": torch.ones(5, 4), "b": NAN_IN_BIAS}
    torch.testing.assert_close(
        IRExecutor(after, weights).run(values).outputs, IRExecutor(ir, weights).run(values).outputs, equal_nan=True
    )


@pytest.mark.parametrize("call", ["aten.relu.default(linear)", "aten.clamp.default(linear, 0.0, 6.0)"])
def test_what_cuts_off_stays_apart(call: str) -> None:
    """Inside the operator, relu and similar activations turn NaN into a number."""
    after, report = proved(small("x: float32[2, 4]", weights=WEIGHTS, linear=LAYER, cut=call), ["pack-linears"])
    assert _every(after) == ["_linear_pointwise", call.split(".")[1]]
    assert "turns NaN into a number" in report.declined[0].why


def test_a_result_that_is_read_elsewhere_keeps_its_activation_apart() -> None:
    """The layer is packed, and both consumers read its result."""
    ir = small("x: float32[2, 4]", ["linear", "gelu"], weights=WEIGHTS, linear=LAYER, gelu="aten.gelu.default(linear)")
    assert _every(optimized(ir, ["pack-linears"])) == ["_linear_pointwise", "gelu"]


@pytest.mark.parametrize("residual", ["x: float32[2, 3, 5]", "x: float32[5]"], ids=["same shape", "broadcast"])
def test_a_residual_stays_a_sum(residual: str) -> None:
    """For any shape: the operator that also adds is slower than both."""
    ir = small(
        f"{residual}, y: float32[2, 3, 4]",
        weights=WEIGHTS,
        linear="aten.linear.default(y, w, b)",
        add="aten.add.Tensor(x, linear)",
    )
    assert _every(optimized(ir, ["pack-linears"])) == ["_linear_pointwise", "add"]


@pytest.mark.parametrize(
    ("inputs", "weights", "layer", "why"),
    [
        ("x: float32[2, 4], w: float32[5, 4]", "b: float32[5]", LAYER, "'w' is not a constant weight"),
        ("x: float32[2, 4], b: float32[5]", "w: float32[5, 4]", LAYER, "'b' is not a constant weight"),
        ("x: float64[2, 4]", "w: float64[5, 4], b: float64[5]", LAYER, "does not compute linear layers of float64"),
        ("x: float32[1, 4], w: float32[5, 4]", "b: float32[5]", LAYER, "'w' is not a constant weight"),
        ("x: float32[2, 4]", "w: float32[4]", "aten.linear.default(x, w)", "not a matrix"),
        ("x: float32[2, 0]", "w: float32[5, 0], b: float32[5]", LAYER, "not a matrix of static sizes"),
    ],
)
def test_what_is_not_packed(inputs: str, weights: str, layer: str, why: str) -> None:
    """Weights that are inputs, other dtypes, and operands that are not matrices."""
    (reason,) = _reasons(small(inputs, weights=weights, linear=layer))
    assert why in reason


@pytest.mark.parametrize("rows", ["4", "1, 4", "1, 1, 4"])
def test_one_row_has_a_weight_along_its_longer_side(rows: str) -> None:
    """With more outputs than inputs, that is a transposed weight; it is transposed before the run."""
    ir = small(f"x: float32[{rows}]", weights=WEIGHTS, linear=LAYER)
    after = optimized(ir, ["pack-linears"])
    assert [node.op_type.split(".")[1] for node in after.nodes] == ["permute", "contiguous", "permute", "linear"]
    assert after.nodes[-1]["weight"].stride == (1, 5)
    assert _every(after) == ["linear"]


def test_one_row_has_a_transposed_weight_turned_back() -> None:
    """With fewer outputs than inputs."""
    ir = small(
        "x: float32[1, 6]",
        weights="w: float32[6, 5], b: float32[5]",
        turned="aten.permute.default(w, [1, 0])",
        linear="aten.linear.default(x, turned, b)",
    )
    after = optimized(ir, ["pack-linears"])
    assert [node.op_type.split(".")[1] for node in after.nodes] == ["permute", "contiguous", "linear"]
    assert after.nodes[-1]["weight"].stride is None


@pytest.mark.parametrize("sizes", ["5, 6", "1, 4", "5, 1"])
def test_one_row_whose_weight_lies_well(sizes: str) -> None:
    """A weight along its longer side already, and vectors, which have one side only."""
    makes, reads = sizes.split(", ")
    ir = small(f"x: float32[1, {reads}]", weights=f"w: float32[{sizes}], b: float32[{makes}]", linear=LAYER)
    assert _reasons(ir) == []


def test_a_weight_that_the_model_changes_is_not_packed() -> None:
    """Packed weights must not change."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Buffer(torch.ones(5, 4))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            made = F.linear(x, self.w)
            self.w.mul_(2.0)
            return made

    model = Model().eval()
    x = torch.randn(3, 4)
    compiled = _compiled(Model().eval(), (x,), {})
    for _ in range(3):
        assert not difference(model(x), compiled(x))


@pytest.mark.parametrize("rows", [1, 6])
def test_bfloat16_is_packed_where_the_cpu_has_it(rows: int) -> None:
    """A single row too: half the bytes leave the arithmetic to count."""
    if not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        pytest.skip("oneDNN has no bfloat16 on this CPU")
    ir = small(f"x: bfloat16[{rows}, 32]", weights="w: bfloat16[16, 32], b: bfloat16[16]", linear=LAYER)
    assert _every(optimized(ir, ["pack-linears"])) == ["_linear_pointwise"]


def test_weights_may_lie_in_any_way() -> None:
    """A transposed weight and a bias with gaps, both from the checkpoint, and an input that is a view."""
    ir = small(
        "x: float32[4, 6, 3]", weights=WEIGHTS, turned="aten.permute.default(x, [2, 1, 0])",
        linear="aten.linear.default(turned, w, b)",
    )  # fmt: skip
    after = optimized(ir, ["pack-linears"])
    x, w, b = torch.randn(4, 6, 3), torch.randn(4, 5).t(), torch.randn(10)[::2]
    (made,) = IRExecutor(after, {"w": w, "b": b}).run([x]).outputs
    torch.testing.assert_close(made, F.linear(x.permute(2, 1, 0), w, b))


def test_one_weight_of_two_layers_is_packed_once() -> None:
    """Tied layers share the packed weight in the back end."""

    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(8, 8)

        def forward(self, x: torch.Tensor) -> Any:
            return self.layer(torch.sin(self.layer(x)))

    ir, _ = optimize(extract_ir(Tied().eval(), (torch.randn(3, 8),), strict=False), passes=PASSES)
    assert sum(node.op_type.startswith("mkldnn._reorder") for node in ir.nodes) == 1


def test_sizes_may_be_open() -> None:
    """Batch and sequence; a batch of one, and one of none, run as well."""
    model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8)).eval().requires_grad_(False)
    sizes = ({0: Dim("batch", min=0), 1: Dim("seq", min=1, max=64)},)
    compiled = _compiled(model, (torch.randn(2, 3, 8),), {}, dynamic_shapes=sizes)
    for shape in ((2, 3, 8), (1, 1, 8), (5, 64, 8), (0, 4, 8)):
        x = torch.randn(shape)
        assert not difference(model(x), compiled(x))


@pytest.mark.parametrize("name", ["bert", "gpt", "llama", "lstm", "mlp", "moe", "transformer_encoder", "vit"])
def test_models_give_what_they_gave(name: str) -> None:
    """Models of the catalogue, optimised, packed and run, against the model itself."""
    entry = catalogue.find(name)
    torch.manual_seed(0)
    model, inputs, kwargs = entry.build(), entry.inputs(), entry.kwargs()
    with torch.no_grad():
        assert not difference(model(*inputs, **kwargs), _compiled(model, inputs, kwargs)(*inputs, **kwargs))
