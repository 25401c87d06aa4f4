"""Every kind of guard in every back end and writer: an error for inputs that violate it, else the model's results."""

import copy
import functools
from collections.abc import Callable
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim

from tests.proof import line_of, module
from torch_ir import (
    IR,
    ConversionError,
    ExecutionError,
    GuardError,
    IRExecutor,
    Target,
    compile,
    extract_ir,
    optimize,
    register_backend,
    run_pipeline,
    run_sharded,
    shard,
    split,
    subgraph,
    to_mlir,
    to_onnx,
    to_python,
    to_stablehlo,
    to_torch,
)
from torch_ir.backends import table
from torch_ir.backends.split_guards import split_guards
from torch_ir.backends.table import installed_backends
from torch_ir.passes.optimize_levels import LEVELS

pytestmark = pytest.mark.filterwarnings("ignore::torch_ir.CaptureWarning", "ignore::torch_ir.BackendWarning")
ONES = torch.ones(3, 4)
BACKENDS = ("torch", "onednn", pytest.param("inductor", marks=pytest.mark.long), "onnxruntime", "openvino", "iree")


class Kind(NamedTuple):
    """A model, inputs that its graph is for, inputs that it is not for, and options of the capture."""

    forward: Callable[..., Any]
    good: tuple[Tensor, ...]
    bad: tuple[Tensor, ...]
    options: Any = MappingProxyType({})


def decision(self: Any, x: Tensor) -> Tensor:
    return self.fc(x) + 1 if x.sum() > 0 else self.fc(x) - 1  # a decision on an input


def middle(self: Any, x: Tensor) -> Tensor:
    y = self.fc(x) * 0.1 + x
    return y * 2 if y.sum() > 0 else y.relu()  # a decision on what the model computed


def number(self: Any, x: Tensor) -> Tensor:
    return self.fc(x) * float(x[0, 0])  # a number


def selected(self: Any, x: Tensor) -> Tensor:
    return self.fc(x).flatten()[x.flatten().nonzero()[:, 0]]  # a size that depends on data


def pieces(self: Any, x: Tensor, lengths: Tensor) -> Tensor:
    first, second = x.split(lengths.tolist())
    return torch.cat([self.fc(first), second * 2])


def bounded_loop(self: Any, x: Tensor) -> Tensor:
    while x.norm() > 1:  # more iterations than were explored
        x = x / 2
    return self.fc(x)


def asserting(self: Any, x: Tensor) -> Tensor:
    torch._assert_async(x.sum() > 0, "the sum is negative")
    return self.fc(x)


RECORDED: dict[str, Any] = {"capture": "record"}
OPEN: dict[str, Any] = {"dynamic_shapes": ({0: Dim.AUTO},)}
KINDS = {
    "decision": Kind(decision, (ONES,), (-ONES,), RECORDED),
    "decision in the middle": Kind(middle, (ONES,), (-ONES,), RECORDED),
    "number": Kind(number, (ONES,), (2 * ONES,), RECORDED),
    "fixed shape": Kind(selected, (torch.eye(4)[:3],), (ONES,), RECORDED),
    "fixed value": Kind(
        pieces, (ONES, torch.tensor([1, 2])), (ONES, torch.tensor([2, 1])), {"fixed": {"lengths": [1, 2]}}
    ),
    "decision in a branch": Kind(bounded_loop, (ONES / 10,), (ONES * 99,), {"capture": "record", "explore": 3}),
    "assertion": Kind(asserting, (ONES,), (-ONES,)),
    "attribute": Kind(
        lambda self, x: x * 2 if x.requires_grad else self.fc(x), (ONES,), (ONES.clone().requires_grad_(),)
    ),
    "layout": Kind(
        lambda self, x: self.fc(x) if x.stride()[0] == 1 else x * 2, (ONES.t().contiguous().t(),), (ONES,), RECORDED
    ),
    "constraint": Kind(
        lambda self, x: self.fc(x) if x.shape[0] % 2 == 0 else x * 2, (torch.ones(6, 4),), (ONES,), OPEN
    ),
    "range": Kind(lambda self, x: self.fc(x) if x.shape[0] > 4 else x * 2, (torch.ones(6, 4),), (ONES,), OPEN),
    "size": Kind(lambda self, x: self.fc(x) if x.shape[0] > 4 else x * 2, (torch.ones(6, 4),), (ONES,)),
    "dtype": Kind(lambda self, x: self.fc(x) if x.dtype == torch.float32 else x, (ONES,), (ONES.double(),)),
}  # fmt: skip
ON_DATA = ["decision", "decision in the middle", "number", "fixed shape", "fixed value", "decision in a branch"]
IN_GRAPH = [*ON_DATA, "assertion"]


@functools.cache
def case(name: str) -> tuple[nn.Module, str]:
    """The model of a kind, and its graph as text."""
    kind = KINDS[name]
    torch.manual_seed(0)
    model = module(kind.forward, fc=nn.Linear(4, 4))
    given = copy.deepcopy(model).to("meta") if "fixed" in kind.options else model
    return model, extract_ir(given, kind.good, strict=False, **kind.options).to_json()


def prepared(name: str) -> tuple[Kind, nn.Module, IR]:
    model, text = case(name)
    return KINDS[name], model, IR.from_json(text)


def assert_checked(name: str, run: Callable[..., Any], error: type[Exception] = ExecutionError) -> None:
    """The right result before and after inputs that violate the guard, and an error for those."""
    kind, model, _ = prepared(name)
    wanted = GuardError if name in ON_DATA and error is ExecutionError else error
    for _ in range(2):
        torch.testing.assert_close(run(*kind.good), model(*kind.good), rtol=1e-5, atol=1e-5)
        with pytest.raises(wanted):
            run(*kind.bad)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", KINDS)
def test_every_back_end_checks(name: str, backend: str) -> None:
    if backend not in installed_backends():
        pytest.skip(f"{backend} is not installed")
    _, model, ir = prepared(name)
    assert_checked(name, compile(ir, model.state_dict(), backend=backend, verify=False))


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("name", KINDS)
def test_every_level_keeps_them(name: str, level: str) -> None:
    _, model, ir = prepared(name)
    assert_checked(name, IRExecutor(optimize(ir, level)[0], model.state_dict()))


@pytest.mark.parametrize("name", ON_DATA)
def test_a_subgraph_keeps_those_that_its_inputs_determine(name: str) -> None:
    _, model, ir = prepared(name)
    whole = IRExecutor(subgraph(ir, ir.graph_inputs, ir.graph_outputs), model.state_dict())
    assert_checked(name, lambda *inputs: whole(*inputs)[0])


def test_a_subgraph_leaves_out_guards_on_what_it_does_not_contain() -> None:
    """On other inputs of the graph, and on what is computed after its outputs."""
    _, _, ir = prepared("decision in the middle")
    part = subgraph(ir, ir.graph_inputs, [ir.node("linear").output])
    assert [node.op_type for node in part.nodes] == ["aten.linear.default"]
    part = subgraph(ir, [ir.node("add").output], ir.graph_outputs)
    assert "torch_ir.decision.default" in [node.op_type for node in part.nodes]
    _, _, ir = prepared("decision")
    part = subgraph(ir, [ir.node("linear").output], ir.graph_outputs)
    assert [node.op_type for node in part.nodes] == ["aten.add.Tensor"]


@pytest.mark.parametrize("name", KINDS)
def test_modules_and_source_check(name: str) -> None:
    _, model, ir = prepared(name)
    assert_checked(name, to_torch(ir, model.state_dict()), (ExecutionError, RuntimeError))
    namespace: dict[str, Any] = {"__name__": "written"}
    exec(to_python(ir), namespace)
    net = namespace["Net"]("cpu")
    net.load_state_dict(model.state_dict(), strict=False)
    assert_checked(name, net, (ValueError, RuntimeError))


@pytest.mark.parametrize("name", [*ON_DATA, "constraint"])
def test_formats_without_checks_refuse(name: str, tmp_path: Path) -> None:
    """The error names the guard and the line of the model; nothing is written."""
    _, _, ir = prepared(name)
    about = (
        "the model holds only where" if name == "constraint" else "lengths" if "value" in name else "test_guards.py:"
    )
    path = tmp_path / "model.onnx"
    writers: dict[str, Callable[[], Any]] = {
        "ONNX": lambda: to_onnx(ir, path),
        "StableHLO": lambda: to_stablehlo(ir, path),
        "MLIR": lambda: to_mlir(ir, path),
    }
    for form, write in writers.items():
        if (form, name) == ("MLIR", "constraint"):
            assert write().count("torch.runtime.assert") == 1
            path.unlink()
            continue
        with pytest.raises(
            ConversionError, match=f"cannot be converted to {form}.*if all inputs satisfy it, ir"
        ) as refused:
            write()
        assert about in str(refused.value)
        assert not list(tmp_path.iterdir())


def test_the_refusal_names_the_line_and_its_remedy_works(tmp_path: Path) -> None:
    _, _, ir = prepared("decision")
    with pytest.raises(ConversionError) as refused:
        to_onnx(ir, tmp_path / "model.onnx")
    assert line_of(__file__, "a decision on an input") in str(refused.value)
    assert "ir.erase(ir.node('decision'))" in str(refused.value)
    ir.erase(ir.node("decision"))
    to_onnx(ir, tmp_path / "model.onnx")


@pytest.mark.parametrize("name", ON_DATA[:-1])
def test_a_target_without_a_handler_lists_the_guard(name: str) -> None:
    """A guard is on the work list, unless the target handles it."""
    _, _, ir = prepared(name)
    guards = {node.op_type for node in ir.nodes if node.op_type.startswith("torch_ir.")}
    lowered = Target("npu").lower(ir)
    assert guards <= {missing.op_type for missing in lowered.missing}
    npu = Target("npu")
    npu.lowers(*guards)(lambda node: node.attrs["place"])
    assert guards.isdisjoint(missing.op_type for missing in npu.lower(ir).missing)


def test_conditions_on_sizes_are_in_the_file(tmp_path: Path) -> None:
    """A range is what the caller was promised: the file says it, and MLIR checks it."""
    onnx = pytest.importorskip("onnx")
    _, _, ir = prepared("range")
    to_onnx(ir, tmp_path / "model.onnx")
    facts = {
        entry.key: entry.value for entry in onnx.load(tmp_path / "model.onnx", load_external_data=False).metadata_props
    }
    (name,) = ir.symbols
    assert facts["torch_ir.sizes"] == f"{name} >= 5, {name} > 4"
    assert to_stablehlo(ir).sizes == (f"{name} >= 5", f"{name} > 4")
    assert to_mlir(ir).count("torch.runtime.assert") == 2


@pytest.mark.skipif("iree" not in installed_backends(), reason="iree is not installed")
def test_a_compiled_module_checks_sizes() -> None:
    """The assertions that `to_mlir` writes, without the check of inputs that `compile` adds."""
    kind, model, ir = prepared("constraint")
    run = installed_backends()["iree"].prepare(ir, model.state_dict())
    torch.testing.assert_close(run(kind.good)[0], model(*kind.good))
    with pytest.raises(ExecutionError, match="IREE cannot run the graph"):
        run(kind.bad)


@pytest.fixture
def plain(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[list[str]]:
    """A back end `plain` of the user's own beside `torch` and `auto`; returns the operators of the graphs it gets."""
    seen: list[list[str]] = []
    monkeypatch.setattr(table, "_BACKENDS", {name: table.find_backend(name) for name in ("torch", "auto")})
    monkeypatch.setenv("TORCH_IR_CACHE", str(tmp_path / "cache"))

    @register_backend("plain", "the executor")
    def prepare(graph: IR, weights: Any) -> Any:
        seen.append([node.op_type for node in graph.all_nodes()])
        executor = IRExecutor(graph, weights)
        return lambda values: executor.run(values).outputs

    return seen


def test_a_registered_back_end_gets_no_guards(plain: list[list[str]]) -> None:
    """Its graph has plain operators, without what only the guards read."""
    for name in IN_GRAPH:
        _, model, ir = prepared(name)
        assert_checked(name, compile(ir, model.state_dict(), backend="plain", level=None))
    assert plain[0] == ["aten.linear.default", "aten.add.Tensor"]
    assert not any(op.startswith(("torch_ir.", "aten._assert")) for row in plain for op in row)


def test_auto_measures_no_violation(plain: list[list[str]], tmp_path: Path) -> None:
    """Inputs that violate a guard raise before anything is measured and cached; each back end is checked."""
    kind, model, ir = prepared("decision")
    compiled = compile(ir, model.state_dict(), backend="auto", level=None)
    with pytest.raises(GuardError):
        compiled(*kind.bad)
    assert not plain
    assert not (tmp_path / "cache").exists()
    assert_checked("decision", compiled)
    assert plain == [["aten.linear.default", "aten.add.Tensor"]]


def test_a_guard_on_random_numbers_is_refused() -> None:
    """The back end would draw other numbers than the check."""
    model = module(lambda self, x: x * 2 if torch.rand_like(x).sum() >= 0 else x)
    ir = extract_ir(model, (ONES,), strict=False, capture="record")
    assert torch.equal(compile(ir, {}, backend="torch")(ONES), ONES * 2)
    with pytest.raises(ExecutionError, match=r"depends on random numbers: aten\.rand_like"):
        split_guards(ir)


def test_a_guard_on_a_size_that_depends_on_data() -> None:
    """The nodes that determine the size are part of the check."""

    def forward(self: nn.Module, x: Tensor) -> Tensor:
        count = (x > 0).sum().item()
        torch._check(count >= 0)
        torch._check(count < 10)
        return x * 2

    ir = extract_ir(module(forward).to("meta"), (ONES.to("meta"),))
    graph, checks = split_guards(ir)
    assert "aten._assert_scalar.default" not in [node.op_type for node in graph.nodes]
    assert checks is not None
    IRExecutor(checks, {})(-ONES)
    with pytest.raises(ExecutionError, match=r"u0 < 10|u0 <= 9"):
        IRExecutor(checks, {})(ONES)


@pytest.mark.long
@pytest.mark.parametrize("name", ["decision in the middle", "fixed value"])
@pytest.mark.usefixtures("_forked_python")
def test_stages_and_shards_check(name: str) -> None:
    kind, model, ir = prepared(name)
    weights = model.state_dict()
    staged, sharded = split(ir, 2, anywhere=True), shard(ir, {"fc": "colwise"}, {"tp": 2})
    torch.testing.assert_close(run_pipeline(staged, [kind.good], weights)[0][0], model(*kind.good))
    torch.testing.assert_close(run_sharded(sharded, kind.good, weights)[0], model(*kind.good))
    with pytest.raises(ExecutionError):
        run_pipeline(staged, [kind.bad], weights)
    with pytest.raises(ExecutionError):
        run_sharded(sharded, kind.bad, weights)
