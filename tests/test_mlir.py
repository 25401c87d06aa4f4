"""`to_mlir`: text of the torch dialect without weights, which the real MLIR parses and verifies."""

import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim

import catalogue
from tests.graphs import mlp, tensor, weight
from tests.proof import captured, captured_entry, module
from torch_ir import IR, ConversionError, OpNode, TensorMeta
from torch_ir.ir import Dtype, Expr, Param, Symbol, TensorData
from torch_ir.targets import to_mlir
from torch_ir.targets.mlir.dialect import dialect_name, torch_dialect

mlir = pytest.importorskip("iree.compiler.ir", reason="torch-ir[mlir] is not installed")

UNSUPPORTED = {"fft", "gru", "message_passing"}  # of the catalogue; docs/mlir.md has the reasons
EMITTED = sorted({entry.name for entry in catalogue.entries()} - UNSUPPORTED)
SAMPLE = random.Random(0).sample(EMITTED, 12)


def parsed(text: str) -> Any:
    """Return the module that MLIR parses; unknown operators are rejected."""
    with mlir.Context():
        found = mlir.Module.parse(text)
        assert found.operation.verify()
        return found


def entry_graph(name: str) -> IR:
    return captured_entry(name)


def test_a_graph_as_text() -> None:
    """Weights are parameters by state-dict key, each node is one operator with its name, and nothing else is there."""
    x, w, added, relu = tensor("x", 2), weight("p_fc_bias", 2, keys=("fc.bias",)), tensor("add", 2), tensor("relu", 2)
    nodes = [
        OpNode("add", "aten.add.Tensor", [x, w], [added], {"alpha": 1}, args=["self", "other"]),
        OpNode("relu", "aten.relu.default", [added], [relu], args=["self"]),
    ]
    text = to_mlir(IR(nodes, [x], [relu], params=[w], model_name="Net"))
    parsed(text)
    assert (
        text
        == """\
module @Net {
  util.global private @fc.bias = #flow.parameter.named<"model"::"fc.bias"> : tensor<2xf32>
  func.func @main(%x: !torch.vtensor<[2],f32>) -> (!torch.vtensor<[2],f32>) \
attributes {torch.assume_strict_symbolic_shapes} {
    %int1 = torch.constant.int 1
    %fc.bias = util.global.load @fc.bias : tensor<2xf32>
    %p_fc_bias = torch_c.from_builtin_tensor %fc.bias : tensor<2xf32> -> !torch.vtensor<[2],f32>
    %add = torch.aten.add.Tensor %x, %p_fc_bias, %int1 : \
!torch.vtensor<[2],f32>, !torch.vtensor<[2],f32>, !torch.int -> !torch.vtensor<[2],f32> loc("add")
    %relu = torch.aten.relu %add : !torch.vtensor<[2],f32> -> !torch.vtensor<[2],f32> loc("relu")
    return %relu : !torch.vtensor<[2],f32>
  }
}
"""
    )


def test_lists_options_and_typed_arguments() -> None:
    """Lists are constructed, absent arguments are none, dtypes and devices are the dialect's numbers."""

    def forward(self: nn.Module, x: Tensor) -> Tensor:
        wide = torch.nn.functional.conv2d(x, torch.ones(2, 3, 1, 1), stride=2)
        return torch.full((2,), 1.5, dtype=torch.float64) + wide.mean(dtype=torch.float64) + float("-inf")

    text = to_mlir(captured(module(forward), torch.randn(1, 3, 4, 4)))
    parsed(text)
    for said in [
        "= torch.prim.ListConstruct %int2, %int2 : (!torch.int, !torch.int) -> !torch.list<int>",
        "%none = torch.constant.none",
        "%int7 = torch.constant.int 7",
        '%cpu = torch.constant.device "cpu"',
        "%float-inf = torch.constant.float 0xFFF0000000000000",
    ]:
        assert said in text


def test_a_number_in_the_place_of_a_tensor_takes_the_overload_for_numbers() -> None:
    """`x + 2` is `add.Tensor` with a number to torch, and `add.Scalar` to the dialect."""
    text = to_mlir(captured(module(lambda self, x: x + 2), torch.ones(3)))
    parsed(text)
    assert "torch.aten.add.Scalar %x, %int2, %int1" in text


def test_several_outputs_and_lists_of_outputs() -> None:
    """A list of tensors is unpacked into the outputs of the node."""
    graph = captured(module(lambda self, x: (*x.split(2), *torch.max(x, 0))), torch.randn(4, 3))
    text = to_mlir(graph)
    parsed(text)
    assert "%split_0, %split_1 = torch.prim.ListUnpack" in text
    assert "%max_1_0, %max_1_1 = torch.aten.max.dim" in text


def test_sizes_that_vary_are_read_off_inputs_and_computed() -> None:
    """A symbol is a dimension of an input; expressions of it are computed with the dialect's operators."""
    model = module(lambda self, x: x.reshape(x.shape[0] * 2, -1)[: x.shape[0] // 2 + 1])
    graph = captured(model, torch.randn(4, 6), dynamic_shapes={"x": {0: Dim("rows", min=2, max=64)}})
    text = to_mlir(graph)
    parsed(text)
    assert "func.func @main(%x: !torch.vtensor<[?,6],f32>)" in text
    assert "%rows = torch.aten.size.int %x, %int0" in text
    assert "torch.aten.mul.int %int2, %rows" in text or "torch.aten.mul.int %rows, %int2" in text
    assert "torch.aten.floordiv.int %rows, %int2" in text


def test_constants_of_the_graph_are_in_the_text() -> None:
    """Constants outside the state dict are in the text; elements are exact, whatever their type."""
    constants = {
        "truth": torch.tensor([[True, False], [False, False]]),
        "half": torch.tensor([1.5, -0.0], dtype=torch.bfloat16),
        "long": torch.tensor([-1, 2**40]),
        "none": torch.empty(0, 3),
        "one": torch.tensor(0.1),
    }
    inputs = [
        TensorMeta(name, value.shape, str(value.dtype).removeprefix("torch."), param=_held(name, value))
        for name, value in constants.items()
    ]
    found = str(parsed(to_mlir(IR([], [], inputs, params=inputs))))
    assert "dense<[[true, false], [false, false]]> : tensor<2x2xi1>" in found
    assert "dense<[1.500000e+00, -0.000000e+00]> : tensor<2xbf16>" in found
    assert "dense<[-1, 1099511627776]> : tensor<2xsi64>" in found
    assert "dense<> : tensor<0x3xf32>" in found
    assert "dense<1.000000e-01> : tensor<f32>" in found


def _held(name: str, value: Tensor) -> Param:
    raw = bytes(value.contiguous().view(-1).view(torch.uint8).tolist())
    return Param((name,), "constant", TensorData(tuple(value.shape), str(value.dtype).removeprefix("torch."), raw))


def test_names_can_do_no_harm() -> None:
    """Quotes, brackets, foreign letters and taken names stay names."""
    hostile = 'a"} loc("x") \\ é'
    x, y, z = tensor("é", 2), tensor("è", 2), tensor("main", 2)
    w, other = weight("int1", 2, keys=("main",)), weight("none", 2, keys=(hostile,))
    nodes = [
        OpNode("è", "aten.add.Tensor", [x, w], [y], {"alpha": 1}, args=["self", "other"]),
        OpNode("b", "aten.mul.Tensor", [y, other], [z], args=["self", "other"]),
    ]
    graph = IR(nodes, [x], [z], params=[w, other], model_name=hostile)
    operations = parsed(to_mlir(graph)).body.operations
    assert [operation.operation.name for operation in operations] == ["util.global", "util.global", "func.func"]


def test_what_the_dialect_lacks_is_taken_apart_as_torch_does() -> None:
    """`aten.lstm` becomes the operators of its cells."""
    graph = captured(nn.LSTM(3, 4).eval(), torch.randn(2, 1, 3))
    text = to_mlir(graph)
    parsed(text)
    assert "torch.aten.lstm" not in text
    assert "torch.aten.sigmoid" in text


def test_all_that_is_left_is_listed_and_nothing_is_written(tmp_path: Path) -> None:
    """One sentence, then operator, node and shapes of each; the file is not there."""
    graph = captured(module(lambda self, x: torch.linalg.inv(torch.cdist(x, x))), torch.randn(3, 3))
    with pytest.raises(ConversionError) as caught:
        to_mlir(graph, tmp_path / "model.mlir")
    first, *listed = str(caught.value).splitlines()
    assert first == "the torch dialect of MLIR does not support 2 of the graph's operators:"
    assert [line.split("  ")[1] for line in listed] == ["aten._cdist_forward.default", "aten.linalg_inv.default"]
    assert listed[1].endswith("(linalg_inv)  float32[3, 3] -> float32[3, 3]")
    assert os.listdir(tmp_path) == []


def test_a_size_that_the_dialect_cannot_compute_is_told_by_its_node() -> None:
    """Rounding a fraction is such a size."""
    x, y = tensor("x", "n"), tensor("full", dtype="int64")
    attrs = {"size": [], "fill_value": Expr("ceil(n / 2)"), "dtype": Dtype("int64")}
    graph = IR(
        [OpNode("full", "aten.full.default", [], [y], attrs, args=[])], [x], [y], symbols=[Symbol("n", 1, 9, x, 0)]
    )
    with pytest.raises(ConversionError, match=r"aten.full.default  \(full\)"):
        to_mlir(graph)


def test_what_writes_in_place_is_refused() -> None:
    """The text is functional; in-place writes would change results."""
    x, y = tensor("x", 2), tensor("add_", 2)
    node = OpNode("add_", "aten.add_.Tensor", [x, x], [y], {"alpha": 1}, args=["self", "other"])
    with pytest.raises(ConversionError, match=r"aten.add_.Tensor  \(add_\)"):
        to_mlir(IR([node], [x], [y]))


def test_a_dtype_that_the_dialect_lacks_is_named() -> None:
    """uint16 has no spelling there."""
    x = tensor("x", 2, dtype="uint16")
    with pytest.raises(ConversionError, match="no elements of dtype uint16"):
        to_mlir(IR([], [x], [x]))


def test_the_text_is_written(tmp_path: Path) -> None:
    """The file contains the returned text."""
    path = tmp_path / "deep" / "model.mlir"
    assert to_mlir(mlp(), path) == path.read_text()


@pytest.mark.parametrize("name", ["control_flow", "while_loop"])
def test_bodies_are_regions(name: str) -> None:
    """`cond` is `torch.prim.If`, `while_loop` is `torch.prim.Loop`."""
    text = to_mlir(entry_graph(name))
    parsed(text)
    assert {"control_flow": "torch.prim.If ", "while_loop": "torch.prim.Loop "}[name] in text


def test_a_body_reads_sizes_from_its_own_inputs() -> None:
    """Also from one with the name of a tensor of another shape outside."""
    body = "  symbol batch from x[1]\n  y: float32[4 * batch] = aten.reshape.default(self=x, shape=[{4 * batch}])\n"
    ir = IR.parse(
        f"""
function yes(x: float32[4, batch]) {{
{body}  return y
}}

function no(x: float32[4, batch]) {{
{body}  return y
}}

graph Net(x: float32[batch, 4], c: bool[]) {{
  symbol 2 <= batch from x[0]
  uses @yes
  uses @no
  t: float32[4, batch] = aten.t.default(self=x)
  z: float32[4 * batch] = higher_order.cond(pred=c, operands.0=t, true_fn=@yes, false_fn=@no)
  return z
}}
"""
    )
    text = to_mlir(ir)
    parsed(text)
    assert text.count("torch.aten.size.int %t, %int1") == 2
    assert text.count("torch.aten.size.int %t, %int0") == 0


def test_every_operator_of_the_list_is_in_the_real_dialect() -> None:
    """The list allows writing text without MLIR; it must not contain operators that MLIR lacks."""
    context = mlir.Context()
    assert [op_type for op_type in torch_dialect() if not context.is_registered_operation(dialect_name(op_type))] == []


def test_emitting_needs_no_mlir() -> None:
    """Nor does importing the function import torch."""
    program = """
import sys
from torch_ir.targets import to_mlir
assert 'torch' not in sys.modules
from tests.graphs import mlp
to_mlir(mlp())
sys.exit('iree' in sys.modules)
"""
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


@pytest.mark.filterwarnings("ignore:the values of .* are unknown")
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in SAMPLE else pytest.mark.slow) for name in EMITTED]
)
def test_the_catalogue_is_what_mlir_takes(name: str) -> None:
    """Every model, as captured without weights."""
    parsed(to_mlir(entry_graph(name)))


@pytest.mark.parametrize("name", sorted(UNSUPPORTED))
def test_what_the_page_calls_unsupported_is(name: str) -> None:
    """A model that begins to work leaves the list."""
    with pytest.raises(ConversionError, match="does not support"):
        to_mlir(entry_graph(name))
