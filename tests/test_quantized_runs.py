"""Quantised graphs as they run: memory, recipes chosen by running, kernels of ONNX Runtime, pictures."""

import weakref
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

import torch_ir
from tests.rewriting import small
from torch_ir import IRExecutor, QuantizationError, choose_recipe, movement, observe_ranges, quantize, sensitivity
from torch_ir.analysis import split_prologue
from torch_ir.analysis.dependencies.over_weights import over_weights
from torch_ir.draw.scene import build_scene
from torch_ir.passes.decompose.quantized_rules import QUANTIZED


def test_float_weights_are_let_go() -> None:
    """The executor keeps quantised weights, not the float weights that they were computed from."""
    model = nn.Sequential(nn.Linear(64, 64, bias=False), nn.ReLU(), nn.Linear(64, 8)).eval()
    ir = torch_ir.extract_ir(model, (torch.randn(2, 64),), strict=False)
    quantized, _ = torch_ir.quantize(ir, {"2": None, "*": "int8"})
    weights = {key: value.detach().clone() for key, value in model.state_dict().items()}
    held = {key: weakref.ref(value) for key, value in weights.items()}
    executor = torch_ir.IRExecutor(quantized, weights)
    expected = executor(torch.ones(2, 64))
    del weights
    assert {key for key, value in held.items() if value() is None} >= {"0.weight"}
    assert set(executor.state) == {"2.weight", "2.bias"}
    assert torch.equal(executor(torch.ones(2, 64)), expected)


@pytest.mark.parametrize("is_misled", [False, True])
def test_a_chosen_recipe_is_never_worse_than_one_scheme(is_misled: bool) -> None:
    """Candidates are run: even if the sensitivity is wrong, the result is at least as good as a scheme that fits."""
    torch.manual_seed(0)
    model = nn.Sequential(*(each for _ in range(4) for each in (nn.Linear(64, 64), nn.GELU()))).eval()
    with torch.no_grad():
        for at, layer in enumerate(model[::2]):
            layer.weight *= torch.exp(at * torch.randn(64, 1) / 2)
    inputs = [(torch.randn(8, 64),) for _ in range(2)]
    ir = torch_ir.extract_ir(model, inputs[0], strict=False)
    found = sensitivity(ir, model, inputs, ["int4", "int4-g32", "int8"])
    if is_misled:
        rows = [replace(row, movement=replace(row.movement, noise=1 / row.movement.noise)) for row in found.rows]
        found = replace(found, rows=rows)
    uniform, report = quantize(ir, "int4-g32")
    chosen = choose_recipe(ir, model, inputs, found, report.bytes_after)
    best = movement(ir, uniform, model, inputs)
    assert chosen.report.bytes_after <= report.bytes_after
    assert chosen.movement.sqnr >= best.sqnr
    assert chosen.is_uniform or chosen.movement.sqnr > best.sqnr
    if is_misled:
        mix, _ = quantize(ir, found.recipe(report.bytes_after))
        assert movement(ir, mix, model, inputs).sqnr < best.sqnr  # what would have been returned
    with pytest.raises(QuantizationError, match="too small"):
        choose_recipe(ir, model, inputs, found, 100)


@pytest.mark.parametrize("shape", [(4, 16), (2, 4, 16)])
def test_onnx_runtime_multiplies_integers(shape: tuple[int, ...], tmp_path: Path) -> None:
    """A quantised layer with a float bias gets the integer kernel, not a float product of restored values."""
    onnxruntime = pytest.importorskip("onnxruntime")
    onnx = pytest.importorskip("onnx")
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 8)).eval()
    inputs = [(torch.randn(shape),) for _ in range(2)]
    ir = torch_ir.extract_ir(model, inputs[0], strict=False)
    quantized, _ = quantize(ir, "w8a8", ranges=observe_ranges(ir, model, inputs))
    torch_ir.to_onnx(quantized, tmp_path / "model.onnx", model)
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath, options.log_severity_level = str(tmp_path / "seen.onnx"), 3
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx", options, providers=["CPUExecutionProvider"])
    operators = [node.op_type for node in onnx.load(tmp_path / "seen.onnx").graph.node]
    assert sum(operators.count(kernel) for kernel in ("MatMulIntegerToFloat", "QGemm")) == 2
    assert not {"Gemm", "MatMul", "DequantizeLinear"} & set(operators)
    (got,) = session.run(None, {session.get_inputs()[0].name: inputs[0][0].numpy()})
    torch.testing.assert_close(torch.from_numpy(got), IRExecutor(quantized, model)(*inputs[0]), atol=2e-2, rtol=0)


def test_pictures_show_quantised_dtypes() -> None:
    """A quantised value has its dtype beside its shape; others have only their shape."""
    model = nn.Sequential(nn.Linear(16, 8)).eval()
    ir = torch_ir.extract_ir(model, (torch.randn(2, 16),), strict=False)
    quantized, _ = quantize(ir, "int8")
    picture = torch_ir.ir_to_mermaid(quantized)
    assert "int8 8x16" in picture
    assert "float32" not in picture


@pytest.mark.parametrize(("scheme", "facts"), [("int8", "2 ops, 224 B in int8"), ("int4", "160 B in uint8")])
def test_pictures_of_modules_show_quantised_bytes(scheme: str, facts: str) -> None:
    """Of 8 rows: 16 values, a scale, a zero point and a bias each; what restores the weight is one of the operators."""
    model = nn.Sequential(nn.Sequential(nn.Linear(16, 8), nn.ReLU()), nn.Linear(8, 2)).eval()
    ir = torch_ir.extract_ir(model, (torch.randn(2, 16),), strict=False)
    quantized, _ = quantize(ir, scheme)
    boxes = build_scene(quantized, depth=2).boxes
    (box,) = (box for box in boxes if "0.0" in box.lines)
    assert facts in box.lines[-1]
    assert "320 parameters" not in "".join(box.lines)


def test_what_restores_weights_is_not_computed_once() -> None:
    """As in the executor: the nodes that quantise are the prologue, those that restore run each time."""
    model = nn.Sequential(nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 2)).eval()
    ir = torch_ir.extract_ir(model, (torch.randn(2, 16),), strict=False)
    quantized, _ = quantize(ir, "int8")
    assert over_weights(quantized) == split_prologue(quantized)[0]


def test_matrices_of_a_large_vocabulary_are_packed() -> None:
    """Two values of 4 bits in a byte, whatever the number of rows."""
    model = nn.Linear(4, 40_000, bias=False, device="meta").eval()
    ir = torch_ir.extract_ir(model, (torch.empty(1, 4, device="meta"),))
    _, report = quantize(ir, "int4")
    assert report.bytes_after == 40_000 * (2 + 4 + 4)  # of each row: values, scale and zero point


def test_ties_are_rounded_with_the_zero_point_of_their_token() -> None:
    """Torch adds zero points before rounding here, so that 0.5 + 1 becomes 2, as in ONNX Runtime."""
    pytest.importorskip("onnxruntime", reason="torch-ir[onnx] is not installed")
    quantize_rows = "quantized_decomposed.quantize_per_token.default(x, s, z, 0, 255, Dtype('uint8'))"
    ir = small("x: float32[2, 4], s: float32[2, 1], z: int32[2, 1]", q=quantize_rows)
    x = torch.tensor([0.5, 1.5, 2.5, -0.5]).expand(2, 4).contiguous()
    inputs = (x, torch.ones(2, 1), torch.tensor([[1], [2]], dtype=torch.int32))
    compiled = torch_ir.compile(ir, {}, backend="onnxruntime", level=None, verify=False)
    assert torch.equal(compiled(*inputs), IRExecutor(ir, {})(*inputs))


class Queries(nn.Module):
    """A layer whose input is a parameter, or a buffer that every run changes."""

    def __init__(self) -> None:
        super().__init__()
        self.queries = nn.Parameter(torch.randn(3, 16))
        self.register_buffer("state", torch.ones(3, 16))
        self.one, self.other, self.last = (nn.Linear(16, 16) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        before = self.last(self.state)
        self.state.mul_(2)
        return self.one(self.queries) @ self.other(x).T + before.sum()


def test_weights_that_layers_read_as_inputs_are_observed() -> None:
    """The range is that of the parameter, and of the values that a buffer has before each run and after the last."""
    model = Queries().eval()
    inputs = [(torch.randn(5, 16),) for _ in range(2)]
    ir = torch_ir.extract_ir(model, inputs[0], strict=False)
    ranges = torch_ir.observe_ranges(ir, model, inputs)
    assert ranges["one"] == (model.queries.min().item(), model.queries.max().item())
    assert ranges["last"] == (1.0, 4.0)
    quantized, _ = torch_ir.quantize(ir, "w8a8", ranges=ranges)
    assert torch_ir.movement(ir, quantized, model, inputs).sqnr > 30  # both graphs keep the buffer


@pytest.mark.parametrize("pair", [(1.0, -1.0), (float("-inf"), 1.0), (0.0, float("nan"))])
def test_a_range_that_is_none_is_refused(pair: tuple[float, float]) -> None:
    ir = torch_ir.extract_ir(nn.Sequential(nn.Linear(4, 4)).eval(), (torch.randn(2, 4),), strict=False)
    with pytest.raises(torch_ir.QuantizationError, match="the range of '0' must be two numbers"):
        torch_ir.quantize(ir, "w8a8", ranges={"0": pair})


def test_inputs_without_elements_have_no_range() -> None:
    ir = torch_ir.extract_ir(nn.Sequential(nn.Linear(4, 4)).eval(), (torch.randn(0, 4),), strict=False)
    with pytest.raises(torch_ir.QuantizationError, match="the input of '0' has no elements in any of 1 inputs"):
        torch_ir.observe_ranges(ir, {"0.weight": torch.ones(4, 4), "0.bias": torch.ones(4)}, [(torch.randn(0, 4),)])


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_rules_of_quantised_operators_are_those_of_torch(axis: int) -> None:
    """Each rule returns the bits of the operator, with odd zero points and values in the middle of two integers."""
    x = torch.arange(-12, 12).reshape(4, 6) / 2
    limits, count = (-8, 7, torch.int8), x.shape[axis]
    scales, zeros = torch.tensor([1.0, 0.5, 0.25, 2.0, 1.0, 0.5]), torch.tensor([1, 2, 3, 0, -1, 5], dtype=torch.int32)
    calls = {
        "quantize_per_channel.default": (x, scales[:count], zeros[:count], axis, *limits),
        "dequantize_per_channel.default": (x.to(torch.int8), scales[:count], zeros[:count], axis, *limits),
        "quantize_per_token.default": (x, scales[:4, None], zeros[:4, None], *limits),
        "quantize_per_channel_group.default": (x, scales.repeat(2)[:8], zeros.repeat(2)[:8], *limits, 3),
        "quantize_per_tensor.tensor": (x, scales[2], zeros[2].long(), *limits),
    }
    for name, arguments in calls.items():
        packet, overload = name.split(".")
        operator = getattr(getattr(torch.ops.quantized_decomposed, packet), overload)
        assert torch.equal(QUANTIZED[f"quantized_decomposed.{name}"](*arguments), operator(*arguments)), name
