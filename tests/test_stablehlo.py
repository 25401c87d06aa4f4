"""`to_stablehlo`: text that MLIR's own parser and verifier accept, with weights as arguments in a known order."""

import inspect
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim

import catalogue
import torch_ir
from tests.graphs import tensor, weight
from tests.proof import captured, captured_entry, module
from tests.stablehlo_models.sweep import CATALOGUE, EQUAL, NOT_COMPILED, Case, cases, measure
from torch_ir import IR, ConversionError, OpNode, extract_ir, optimize, to_stablehlo
from torch_ir.cli import main
from torch_ir.errors import UnsupportedOperatorsError
from torch_ir.ops.own_decompositions import histc
from torch_ir.ops.schema import arguments, find_operator
from torch_ir.targets.stablehlo.element_types import scalar_text
from torch_ir.targets.stablehlo.rules import RULES

SAMPLE = random.Random(0).sample([entry.name for entry in catalogue.entries()], 8)


def parsed(text: str) -> Any:
    """Return the module that MLIR parses; unknown operators and wrong types are rejected."""
    mlir = pytest.importorskip("iree.compiler.ir", reason="torch-ir[mlir] is not installed")
    with mlir.Context():
        found = mlir.Module.parse(text)
        assert found.operation.verify()
        return found


NOT_IN_IREE = {"embedding_bag", "fft", "moe", "moe_gather", "static_cache"}  # IREE 3.13 does not compile them


@pytest.mark.parametrize(
    "case",
    [pytest.param(case, marks=() if case.name in ("lstm", "mlp") else pytest.mark.slow) for case in cases(CATALOGUE)],
    ids=lambda case: case.name,
)
def test_a_model_runs_in_iree(case: Case) -> None:
    """Compiled from the text, it returns what eager returns."""
    pytest.importorskip("iree.compiler", reason="torch-ir[mlir] is not installed")
    found = measure(case, "iree")
    assert found.status == (NOT_COMPILED if case.name in NOT_IN_IREE else EQUAL), found.why


def test_a_graph_as_text() -> None:
    """Weights come first, by state-dict key; each operator has the name of its node as location."""
    x, w, added, relu = tensor("x", 2), weight("p_fc_bias", 2, keys=("fc.bias",)), tensor("add", 2), tensor("relu", 2)
    nodes = [
        OpNode("add", "aten.add.Tensor", [x, w], [added], {"alpha": 1}, args=["self", "other"]),
        OpNode("relu", "aten.relu.default", [added], [relu], args=["self"]),
    ]
    made = to_stablehlo(IR(nodes, [x], [relu], params=[w], model_name="Net"))
    parsed(made.text)
    assert (made.weights, made.inputs, made.outputs, made.mutated) == (("fc.bias",), ("x",), ("relu",), ())
    assert (
        str(made)
        == """\
module @Net {
  func.func public @main(%p_fc_bias: tensor<2xf32> loc("fc.bias"), %x: tensor<2xf32> loc("x")) -> (tensor<2xf32>) {
    %c = "stablehlo.constant"() {value = dense<0.0> : tensor<2xf32>} : () -> tensor<2xf32>
    %add = "stablehlo.add"(%x, %p_fc_bias) : (tensor<2xf32>, tensor<2xf32>) -> (tensor<2xf32>) loc("add")
    %maximum = "stablehlo.maximum"(%add, %c) : (tensor<2xf32>, tensor<2xf32>) -> (tensor<2xf32>) loc("relu")
    return %maximum : tensor<2xf32>
  }
}
"""
    )


@pytest.mark.parametrize("name", SAMPLE)
def test_models_of_the_catalogue_are_valid(name: str) -> None:
    parsed(to_stablehlo(captured_entry(name)).text)


@pytest.mark.slow
def test_every_model_of_the_catalogue_is_valid() -> None:
    for entry in catalogue.entries():
        parsed(to_stablehlo(captured_entry(entry.name)).text)


def test_repeated_blocks_are_one_function() -> None:
    """Each block is a call with its own weights; with functions="none" there is only `main`."""
    tower = nn.Sequential(*(nn.Sequential(nn.Linear(3, 3), nn.Tanh()) for _ in range(3))).eval()
    ir = extract_ir(tower, (torch.randn(4, 3),), strict=False, blocks="function")
    made = to_stablehlo(ir)
    parsed(made.text)
    assert made.text.count("func.func") == 2
    assert made.text.count("func.call") == 3
    assert made.weights == tuple(tower.state_dict())
    assert to_stablehlo(ir, functions="none").text.count("func.func") == 1
    with pytest.raises(ConversionError, match="unknown functions='some'"):
        to_stablehlo(ir, functions="some")


def test_changed_buffers_are_further_results() -> None:
    """The new value of a buffer comes after the outputs, and `mutated` names it."""

    def forward(self: Any, x: Tensor) -> Tensor:
        self.total.add_(x.sum())
        return x * 2

    made = to_stablehlo(captured(module(forward, buffers={"total": torch.zeros(())}), torch.randn(3)))
    assert (made.weights, made.mutated) == (("total",), ("total",))
    assert "-> (tensor<3xf32>, tensor<f32>) {" in made.text
    parsed(made.text)


def test_open_sizes_are_dynamic_dimensions() -> None:
    """A size is read from the input that determines it, and computed from there."""
    batch = torch.export.Dim("batch", min=2, max=64)
    ir = extract_ir(
        module(lambda self, x: (x + 1).reshape(-1) + torch.arange(2 * x.shape[0])), (torch.randn(4, 2),),
        dynamic_shapes={"x": {0: batch}}, strict=False,
    )  # fmt: skip
    text = to_stablehlo(ir).text
    parsed(text)
    for said in ("%x: tensor<?x2xf32>", "get_dimension_size", "dynamic_reshape", "dynamic_iota"):
        assert said in text


def test_fractions_of_open_sizes_are_converted() -> None:
    """`x / (n - 0.5)` and a tensor filled with a fraction of n: a float64 scalar, converted to the result's dtype."""
    forward = module(lambda self, x: (x / (x.shape[0] - 0.5), torch.full((2,), x.shape[0] * 1.5)))
    ir = extract_ir(forward, (torch.randn(7, 2),), dynamic_shapes={"x": {0: Dim("n", min=2)}}, strict=False)
    text = to_stablehlo(ir).text
    parsed(text)
    assert "tensor<f64>) -> (tensor<f32>)" in text


def test_a_triangle_may_start_at_an_open_diagonal() -> None:
    """`tril(x, n - 3)`: the number of the diagonal is computed from the size; IREE returns what eager returns."""
    model = module(lambda self, x: (x.tril(x.shape[0] - 3), x.triu(x.shape[0] // 2 - 2)))
    rows = {"x": {0: Dim("n", min=2, max=9)}}
    ir = extract_ir(model, (torch.randn(7, 4),), dynamic_shapes=rows, strict=False)
    parsed(to_stablehlo(ir).text)
    compiled = torch_ir.compile(ir, {}, backend="iree")
    for count in (2, 3, 9):
        x = torch.randn(count, 4)
        assert all(map(torch.equal, compiled(x), model(x)))


def test_unsupported_operators_are_ranked(tmp_path: Path) -> None:
    """All are listed with shapes and reasons, those with most nodes first, and no file is written."""

    def forward(self: Any, x: Tensor) -> tuple[Tensor, ...]:
        return torch.cdist(x, x, p=3.0), torch.lgamma(x), torch.lgamma(x * 2)

    with pytest.raises(UnsupportedOperatorsError) as raised:
        to_stablehlo(captured(module(forward), torch.randn(3, 2)), tmp_path / "model.mlir")
    assert [(row.op_type, row.nodes) for row in raised.value.missing] == [
        ("aten.lgamma.default", 2), ("aten._cdist_forward.default", 1),
    ]  # fmt: skip
    assert "aten.lgamma.default  2x  3x2 -> 3x2  (torch has no decomposition of it)" in str(raised.value)
    assert not list(tmp_path.iterdir())


def test_random_numbers_are_refused_if_they_are_used() -> None:
    """A number that no result depends on is not written."""
    used = captured(module(lambda self, x: x + torch.rand(3)), torch.randn(3))
    with pytest.raises(UnsupportedOperatorsError, match="rand"):
        to_stablehlo(used)
    unused = captured(module(lambda self, x: (torch.rand(3), x + 1)[1]), torch.randn(3))
    assert "rand" not in to_stablehlo(unused).text


@pytest.mark.parametrize(
    "function",
    [torch.log2, torch.asin, torch.atan, torch.sinh, torch.acosh, torch.exp2, torch.var, torch.std],
    ids=lambda function: function.__name__,
)
def test_complex_numbers_without_a_rule_are_refused(function: Any) -> None:
    """Instead of the function of their real parts."""
    ir = captured(module(lambda self, x: function(x)), torch.randn(3, dtype=torch.complex64))
    with pytest.raises(UnsupportedOperatorsError, match="no rule for complex numbers"):
        to_stablehlo(ir)


def test_bins_of_a_histogram_are_those_of_torch() -> None:
    """Also of values at the edges of bins."""
    for bins, least, most in ((10, 0.0, 3.0), (7, -1.0, 2.0), (100, 0.0, 0.7)):
        edges = torch.linspace(least, most, bins + 1)
        values = torch.cat([edges, edges.nextafter(torch.tensor(9.0)), edges.nextafter(torch.tensor(-9.0))])
        assert torch.equal(histc(values, bins, least, most), torch.histc(values, bins, least, most))


def test_every_rule_takes_the_arguments_of_its_operator() -> None:
    mistakes = []
    for op_type, rule in RULES.items():
        found = find_operator(op_type)
        assert found is not None, op_type
        try:
            inspect.signature(rule).bind(None, None, **{each.name: None for each in arguments(found)})
        except TypeError as error:
            mistakes.append(f"{op_type}: {error}")
    assert mistakes == []


@pytest.mark.parametrize(
    ("value", "dtype", "text"),
    [
        (0.1, "float32", "0.10000000149011612"), (float("inf"), "float32", "0x7F800000"), (True, "bool", "true"),
        (float("-inf"), "bfloat16", "0xFF80"), (float("-inf"), "float16", "0xFC00"), (2.9, "int64", "2"),
        (float("nan"), "float64", "0x7FF8000000000000"), (-0.0, "float32", "-0.0"), (1j, "complex64", "(0.0, 1.0)"),
        (300, "int8", "44"), (-1, "uint8", "255"), (-129, "int8", "127"), (-1, "int64", "-1"), (255, "uint8", "255"),
    ],
)  # fmt: skip
def test_numbers_are_rounded_to_their_dtype(value: Any, dtype: str, text: str) -> None:
    assert scalar_text(value, dtype) == text


def test_the_command_writes_what_the_function_returns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`.stablehlo.mlir` is StableHLO, `.mlir` alone the torch dialect."""
    monkeypatch.chdir(tmp_path)
    ir = captured(nn.Sequential(nn.Linear(3, 2), nn.ReLU()).eval(), torch.randn(4, 3))
    ir.save("net.json")
    assert main(["convert", "net.json", "-o", "net.stablehlo.mlir", "--functions", "none"]) == 0
    assert Path("net.stablehlo.mlir").read_text() == to_stablehlo(ir, functions="none").text
    assert main(["convert", "net.json", "-o", "net.mlir"]) == 0
    assert "torch.aten.linear" in Path("net.mlir").read_text()


def test_fused_operators_of_dynamic_sizes_are_decomposed() -> None:
    """The function of a fused operator reads the sizes of the graph around it."""
    layers = nn.Sequential(nn.Linear(4, 8), nn.SiLU(), nn.Linear(8, 2)).double().eval()
    batch = {"input": {0: Dim("batch", min=1, max=9)}}
    ir = extract_ir(layers, (torch.randn(3, 4).double(),), strict=False, dynamic_shapes=batch)
    fused = optimize(ir, "full")[0]
    assert [node.op_type for node in fused.nodes] == ["fused.linear_silu", "aten.linear.default"]
    for functions in ("blocks", "all", "none"):
        parsed(to_stablehlo(fused, functions=functions).text)
