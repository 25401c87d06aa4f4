"""The table of refusals: applied before anything runs, and consistent with its page."""

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # as everyone calls it
from torch import Tensor, nn

import torch_ir
from tests.backend_sweep.functions import Function
from tests.backend_sweep.page import PAGE, table_text
from tests.needed import need_backend
from torch_ir import IR, ExecutionError, extract_ir, to_onnx
from torch_ir.backends import compile, register_backend, table
from torch_ir.backends import deviations as deviations_module
from torch_ir.backends.deviations import DEVIATION, REFUSED, VOCABULARY, Row, refused_nodes, rows
from torch_ir.backends.table import installed_backends
from torch_ir.cli.dispatch import main
from torch_ir.errors import CaptureWarning, CommandError, ConversionError
from torch_ir.ops.schema import find_operator


def graph(function: Any, *inputs: Tensor) -> IR:
    return extract_ir(Function(function).eval(), inputs, strict=False)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_IR_CACHE", str(tmp_path))


def test_every_row_is_sound() -> None:
    """Operators exist, conditions are of the vocabulary, and values belong to deviations alone."""
    for row in rows():
        assert row.operator == "*" or find_operator(row.operator) is not None, row
        assert set(row.when) <= VOCABULARY
        assert row.effect in (REFUSED, DEVIATION)
        assert row.effect == DEVIATION or "values" not in row.when
        assert row.reason
        assert row.version.split()[1][0].isdigit()


def test_the_page_shows_the_table() -> None:
    assert table_text() in PAGE.read_text(encoding="utf-8")


@pytest.mark.parametrize("name", ["ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA"])
def test_openvino_is_refused_where_its_kernels_crash(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some ignore the limit of the others, and write beyond their memory."""
    need_backend("openvino")
    for allowed in ("ALL", "avx512_core"):
        monkeypatch.setenv(name, allowed)
        assert "openvino" in installed_backends()
    monkeypatch.setenv(name, "AVX2")
    assert "openvino" not in installed_backends()
    with pytest.raises(
        ExecutionError, match=f"^OpenVINO may crash with {name}=AVX2; unset it, or use another back end$"
    ):
        compile(graph(torch.relu, torch.ones(3)), {}, backend="openvino")


def test_a_refused_node_is_named_before_anything_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """One line: the back end, the node, the reason, and the alternatives."""
    need_backend("openvino")
    monkeypatch.setattr("torch_ir.backends.openvino._compiled", None)  # were it called, it would fail
    ir = graph(lambda x: F.dropout(x, 0.5, True), torch.ones(3))
    with pytest.raises(ExecutionError) as caught:
        compile(ir, {}, backend="openvino")
    said = str(caught.value)
    assert said.startswith("openvino does not compute Function as torch does: aten.dropout.default (dropout) computes")
    assert said.partition("; use ")[2].startswith("torch or ")
    assert "\n" not in said


@pytest.mark.parametrize(
    ("when", "matches"),
    [
        ({}, True),
        ({"attr": {"p": 0.5}}, True),
        ({"attr": {"train": False}}, False),
        ({"at_least": {"p": 0.25}}, True),
        ({"at_least": {"p": 0.75}}, False),
        ({"at_most": {"p": 0.5}}, True),
        ({"at_most": {"p": 0.25}}, False),
        ({"rounds": True}, False),
        ({"dtype": ["float32"]}, True),
        ({"dtype": ["int64"]}, False),
        ({"given": ["input"]}, True),
        ({"given": ["mask"]}, False),
        ({"rank": 1}, True),
        ({"rank": 0}, False),
        ({"empty": True}, False),
        ({"open": True}, False),
        ({"storage": True}, False),
        ({"attr": {"train": True}, "rank": 0}, False),
    ],
)
def test_conditions(when: dict[str, Any], matches: bool) -> None:
    (node,) = graph(lambda x: F.dropout(x, 0.5, True), torch.ones(3)).nodes
    assert Row("mine", node.op_type, when, REFUSED, "", "").matches(node) is matches
    assert not Row("mine", "aten.relu.default", when, REFUSED, "", "").matches(node)


FAULTS: dict[str, tuple[Any, Tensor]] = {
    "zeros before max_pool1d": (lambda x: F.max_pool1d(F.pad(x, (1, 1)), 2), -torch.ones(1, 2, 6)),
    "zeros before max_pool2d": (lambda x: F.max_pool2d(F.pad(x, (1, 1, 1, 1)), 2), -torch.ones(1, 2, 6, 6)),
    "zeros before avg_pool2d": (lambda x: F.avg_pool2d(F.pad(x, (1, 1, 1, 1)), 2), -torch.ones(1, 2, 6, 6)),
    "numbers before max_pool2d": (lambda x: F.max_pool2d(F.pad(x, (1, 1), value=2.0), 2), -torch.ones(1, 2, 6, 6)),
    "zeros before a convolution": (lambda x: F.conv1d(F.pad(x, (1, 1)), torch.ones(2, 2, 3)), -torch.ones(1, 2, 6)),
    "negative scale": (lambda x: F.scaled_dot_product_attention(x, x, x, scale=-0.5), torch.eye(4)[None, None]),
    "negative scale, masked": (
        lambda x: F.scaled_dot_product_attention(x, x, x, torch.ones(4, 4).tril().bool(), scale=-0.5),
        torch.eye(4)[None, None],
    ),
    "kept dimensions of a norm": (lambda x: torch.linalg.vector_norm(x, 3, keepdim=True), torch.linspace(-2, 2, 8)),
    "kept dimensions of a norm of all": (lambda x: torch.linalg.norm(x, keepdim=True), torch.eye(3) * 2),
    "kept dimensions of an index": (lambda x: (x.argmax(None, True), x.argmin(None, True)), torch.eye(3) * 2),
    "mean of integers": (lambda x: (x.mean(0, dtype=torch.float32), x.mean(dtype=torch.float32)), torch.arange(8)),
    "distances": (lambda x: (torch.cdist(x, -x, 1.0), torch.cdist(x, -x, 0.0), torch.cdist(x, -x, 3.0)), torch.eye(3)),
    "largest distances": (lambda x: torch.cdist(x, -x, torch.inf), torch.eye(3)),
    "correction": (lambda x: (*torch.std_mean(x, 0, correction=2), *torch.var_mean(x, correction=0)), torch.eye(3)),
    "input_scale": (lambda x: torch.ops.aten.elu(x, 1.5, 1.2, 0.7), torch.linspace(-2, 2, 8)),
}


WITHOUT = {
    "onnxruntime": {"negative scale", "negative scale, masked", "input_scale", "distances", "largest distances"}
    | {name for name in FAULTS if name.startswith("kept dimensions")},
    "openvino": {"input_scale", "distances", "largest distances", "correction"},
}


@pytest.mark.parametrize("name", FAULTS)
@pytest.mark.parametrize("backend", ["onnxruntime", "openvino"])
def test_faults_of_runtimes_are_avoided(name: str, backend: str, tmp_path: Path) -> None:
    """By another form of the same graph, also in a file; or the back end refuses it, and so does `to_onnx`."""
    need_backend(backend)
    function, x = FAULTS[name]
    ir = graph(function, x)
    if name in WITHOUT[backend]:
        with pytest.raises((ConversionError, ExecutionError), match=r"unsupported|exact translation|does not compute"):
            compile(ir, {}, backend=backend)
        return
    torch.testing.assert_close(compile(ir, {}, backend=backend, verify=False)(x), function(x))
    if backend == "onnxruntime":
        to_onnx(ir, tmp_path / "a.onnx")  # which compares it


@pytest.mark.parametrize(
    ("function", "refused"),
    [
        (lambda x: (x + 1).half().float(), ["openvino"]),
        (lambda x: (x + 1).bfloat16().type_as(x), ["openvino"]),
        (lambda x: (x + 1).half().int(), ["openvino"]),
        (lambda x: (x + 1).half() == x.half(), ["openvino"]),
        (lambda x: (x + 1).bfloat16().reshape(4, 8).argmax(1), ["openvino"]),
        (lambda x: (x * 2.0**12).int().half().float(), ["openvino"]),
        (lambda x: (x > 0).half().float() * (x.int() + 2**24).float().long(), []),
        (lambda x: F.rms_norm(x.half(), (4,)), ["openvino"]),
        (lambda x: F.rms_norm(x.half(), (4,), eps=1e-8), ["openvino"]),
        (lambda x: F.rms_norm(x.half(), (4,), eps=1e-5), []),
        (lambda x: (x + 1).half(), []),
        (lambda x: (x.half() + 1).float(), []),
        (lambda x: (x + 1).int().float(), []),
        (lambda x: F.scaled_dot_product_attention(x, x, x, is_causal=True, scale=-1.0), ["onnxruntime", "openvino"]),
        (lambda x: F.scaled_dot_product_attention(x, x, x, dropout_p=0.5), ["openvino"]),
    ],
)
def test_what_a_runtime_leaves_out_is_refused(function: Any, refused: list[str]) -> None:
    ir = graph(function, torch.ones(1, 2, 4, 4))
    assert [name for name in ("onnxruntime", "openvino") if refused_nodes(ir, name)] == refused


def test_attention_with_dropout_has_no_onnx(tmp_path: Path) -> None:
    ir = graph(lambda x: F.scaled_dot_product_attention(x, x, x, dropout_p=0.5), torch.ones(1, 2, 4, 4))
    with pytest.raises(ConversionError, match="would ignore dropout_p"):
        to_onnx(ir, tmp_path / "a.onnx")


def test_onnxruntime_computes_float64_with_the_constants_of_the_graph() -> None:
    """0.1 is another number in 32 bits, in which torch's exporter writes it."""
    pytest.importorskip("onnxruntime", reason="torch-ir[onnx] is not installed")
    x = torch.arange(6.0, dtype=torch.float64) / 7
    for function in (
        lambda x: x * 0.1,
        lambda x: x.clamp(max=0.1),
        lambda x: torch.add(x, x, alpha=0.1),
        lambda x: (x.reshape(2, 3) @ x.reshape(3, 2)) * 0.3,  # one product with a float32 factor in ONNX Runtime
    ):
        exact = compile(graph(function, x), {}, backend="onnxruntime", verify=False)
        torch.testing.assert_close(exact(x), function(x), rtol=1e-14, atol=0)


@pytest.mark.parametrize("function", [lambda x: x > 127, lambda x: x.abs(), lambda x: x.sort()[0], torch.msort])
def test_iree_refuses_bytes_where_it_takes_them_as_signed(function: Any) -> None:
    """There, 200 is less than 127."""
    for dtype, count in ((torch.uint8, 1), (torch.int32, 0)):
        found = refused_nodes(graph(function, torch.ones(6, dtype=dtype)), "iree")
        assert [reason for _, reason in found] == ["takes uint8 as signed"] * count


def test_auto_skips_a_back_end_that_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table, "_BACKENDS", {"torch": table.find_backend("torch")})
    register_backend("wrong", "never asked")(lambda ir, weights: pytest.fail("it was prepared"))
    row = Row("wrong", "aten.relu.default", {}, REFUSED, "rounds up", "wrong 1")
    monkeypatch.setattr(deviations_module, "rows", lambda: (row,))
    runs = compile(graph(torch.relu, torch.ones(3)), {}, backend="torch")
    assert refused_nodes(runs.graph, "wrong")[0][1] == "rounds up"
    run = torch_ir.backends.auto.Auto(runs.graph, {})
    run([torch.ones(3)])
    assert run.chosen == "torch"
    assert "rounds up" in run.why


# -- verify= ----------------------------------------------------------------------------------------------------------


def test_verify_passes_what_is_right_and_keeps_no_state() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)).train()
    with pytest.warns(CaptureWarning, match="training mode"):
        ir = extract_ir(model, (torch.randn(3, 4),), strict=False)
    compiled = compile(ir, model.state_dict(), backend="torch", verify=True)
    x = torch.randn(3, 4)
    torch.testing.assert_close(compiled(x), model(x).detach())
    torch.testing.assert_close(compiled(x), model(x).detach())


def test_verify_names_the_output_that_differs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table, "_BACKENDS", {"torch": table.find_backend("torch")})
    register_backend("off", "adds one")(lambda ir, weights: lambda values: [values[0] + 1.001])
    ir = graph(lambda x: x + 1, torch.ones(3))
    assert compile(ir, {}, backend="off")(torch.ones(3)).tolist() != [2, 2, 2]
    with pytest.raises(
        ExecutionError, match=r"off does not compute Function as the executor does: 'add' on random inputs"
    ):
        compile(ir, {}, backend="off", verify=True)


def test_verify_is_for_one_back_end() -> None:
    with pytest.raises(CommandError, match="verify= needs a named back end"):
        compile(graph(torch.relu, torch.ones(3)), {}, backend="auto", verify=True)


def test_verify_on_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "graph.json"
    graph(torch.relu, torch.ones(3)).save(path)
    assert main(["run", str(path), "--weights", "random", "--backend", "onednn", "--verify"]) == 0
    assert "relu: float32[3]" in capsys.readouterr().out
    assert main(["run", str(path), "--weights", "random", "--verify"]) != 0
    assert "add --backend or --level" in capsys.readouterr().err
