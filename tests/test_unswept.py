"""A back end is not trusted with operators, dtypes and versions in which it was never compared with eager."""

import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from tests.backend_sweep.functions import Function
from tests.backend_sweep.swept_pairs import pairs_of, updated
from torch_ir import IR, BackendWarning, ExecutionError, extract_ir, observe_ranges, quantize
from torch_ir.backends import compile, register_backend, swept, table, verifying
from torch_ir.backends import deviations as deviations_module
from torch_ir.backends.deviations import DEVIATION, Row
from torch_ir.backends.swept import Swept, tables
from torch_ir.cli.dispatch import main
from torch_ir.ir.regroup.functions import outline
from torch_ir.ops.schema import find_operator
from torch_ir.run.executor import IRExecutor

X = torch.ones(3)
auto = table.find_backend("auto")


def graph(function: Any, *inputs: Tensor) -> IR:
    return extract_ir(Function(function).eval(), inputs, strict=False)


def _off(value: Tensor, off: float, beyond: int) -> Tensor:
    """Add an error to every element, or to those of more rows than these."""
    return value + off if value.dim() == 0 or value.shape[0] > beyond else value


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., list[int]]]:
    """Register the back end "mine", which adds an error, with these operators compared; return its calls."""
    monkeypatch.setattr(table, "_BACKENDS", {"torch": table.find_backend("torch")})
    verifying._warn_once.cache_clear()

    def register(off: float = 0.0, version: str = "", beyond: int = 0, **operators: str) -> list[int]:
        installed = Swept("torch", "", {}).installed
        names = {f"aten.{name}.default": kinds for name, kinds in operators.items()}
        monkeypatch.setattr(swept, "tables", lambda: {"mine": Swept("torch", version or installed, names)})
        calls: list[int] = []

        @register_backend("mine", "the executor, and an error")
        def prepare(ir: IR, weights: Any) -> Callable[[Sequence[Any]], Sequence[Any]]:
            run = table.find_backend("torch").prepare(ir, weights)
            return lambda values: [calls.append(1), *(_off(value, off, beyond) for value in run(values))][1:]

        return calls

    yield register
    verifying._warn_once.cache_clear()


def test_what_was_compared_costs_nothing(runs: Any) -> None:
    calls = runs(relu="float32, float64")
    compile(graph(torch.relu, X), {}, backend="mine")
    assert calls == []


def test_an_operator_in_another_dtype_is_compared_before_it_is_returned(runs: Any) -> None:
    """One run on random inputs and one on rounded inputs."""
    calls = runs(relu="float32")
    compile(graph(torch.relu, X.double()), {}, backend="mine")
    assert len(calls) == 2


@pytest.mark.parametrize("compared", [{}, {"relu": "float64"}, {"relu": "bool float32"}, {"abs": "float32"}])
def test_a_difference_in_what_was_never_compared_is_an_error(runs: Any, compared: dict[str, str]) -> None:
    runs(off=0.01, **compared)
    ir = graph(torch.relu, X)
    with pytest.raises(ExecutionError, match=r"mine does not compute Function as the executor does: 'relu' on random"):
        compile(ir, {}, backend="mine")
    assert compile(ir, {}, backend="mine", verify=False)(X).tolist() != [1, 1, 1]


@pytest.mark.parametrize("beyond", [0, 1], ids=["every size", "a batch of more than one"])
def test_open_sizes_are_compared_separately(runs: Any, beyond: int) -> None:
    """What was compared at fixed sizes is compared again where sizes are open, at two of them."""
    runs(off=0.01, beyond=beyond, relu="float32")
    sizes = (({0: torch.export.Dim("batch", min=1, max=64)},),)
    ir = extract_ir(Function(torch.relu).eval(), (torch.ones(3, 2),), strict=False, dynamic_shapes=sizes)
    with pytest.raises(ExecutionError, match=r"does not compute Function .* at batch="):
        compile(ir, {}, backend="mine")
    table._BACKENDS.pop("mine")
    calls = runs(relu="float32, float32 open")
    compile(ir, {}, backend="mine")
    assert calls == []


def test_operators_inside_functions_are_compared(runs: Any) -> None:
    runs(off=0.01, relu="float32", neg="float64")
    ir = graph(lambda x: torch.relu(x).neg(), X)
    outline(ir, ir.nodes, "block")
    with pytest.raises(ExecutionError, match="does not compute"):
        compile(ir.check(), {}, backend="mine", level=None)


def test_quantised_operators_are_compared(runs: Any) -> None:
    model = nn.Linear(64, 4).eval()
    quantized, _ = quantize(extract_ir(model, (torch.ones(2, 64),), strict=False), {"*": "int8"})
    runs(off=0.01, linear="float32")
    with pytest.raises(ExecutionError, match="does not compute"):
        compile(quantized, model.state_dict(), backend="mine")


class _Rounds(TorchDispatchMode):
    """Linear layers are off by so many units in the last place, as in another order of their sums."""

    def __init__(self, units: int) -> None:
        super().__init__()
        self.factor = 1 + units * torch.finfo(torch.float32).eps
        self.layers = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func is not torch.ops.aten.addmm.default:
            return result
        self.layers += 1
        return result * self.factor


def quantized_layers(seed: int, scheme: str) -> tuple[IR, dict[str, Tensor]]:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(64, 256), nn.Tanh(), nn.Linear(256, 256), nn.Tanh(), nn.Linear(256, 4)).eval()
    x, weights = torch.randn(16, 64), model.state_dict()
    ir = extract_ir(model, (x,), strict=False)
    ranges = observe_ranges(ir, weights, [(x,)]) if scheme == "w8a8" else None
    return quantize(ir, scheme, ranges=ranges)[0], weights


@pytest.mark.parametrize("units", [4, -4])
@pytest.mark.parametrize("scheme", ["w8a8", "w8a8-dynamic"])
def test_a_value_at_a_tie_may_be_rounded_either_way(scheme: str, units: int) -> None:
    """One step of a hidden value moves whole rows of results by more than the tolerance."""
    for seed in range(12):
        ir, weights = quantized_layers(seed, scheme)

        def run(values: Sequence[Any], ir: IR = ir, weights: dict[str, Tensor] = weights) -> Sequence[Any]:
            with _Rounds(units) as mode:
                outputs = IRExecutor(ir, weights).run(values).outputs
            assert mode.layers == 3
            return outputs

        verifying.verify("mine", run, ir, weights)


def _in_row(change: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """Change one row of sixteen."""
    return lambda value: torch.cat([value[:3], change(value[3:4]), value[4:]])


_ERRORS: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]] = {
    "inputs times 1.001": (lambda x: x * 1.001, lambda y: y),
    "inputs times 1.1": (lambda x: x * 1.1, lambda y: y),
    "results times 1.001": (lambda x: x, lambda y: y * 1.001),
    "a row times 1.1": (lambda x: x, _in_row(lambda y: y * 1.1)),
    "a row of other signs": (lambda x: x, _in_row(torch.neg)),
    "a row of zeros": (lambda x: x, _in_row(torch.zeros_like)),
}


@pytest.mark.parametrize("error", _ERRORS)
@pytest.mark.parametrize("scheme", ["w8a8", "w8a8-dynamic"])
def test_errors_of_quantised_graphs_are_not_taken_for_ties(scheme: str, error: str) -> None:
    before, after = _ERRORS[error]
    for seed in range(4):
        ir, weights = quantized_layers(seed, scheme)

        def run(values: Sequence[Any], ir: IR = ir, weights: dict[str, Tensor] = weights) -> Sequence[Any]:
            return [after(IRExecutor(ir, weights).run([before(value) for value in values]).outputs[0])]

        with pytest.raises(ExecutionError, match="does not compute"):
            verifying.verify("mine", run, ir, weights)


@pytest.mark.parametrize(
    ("name", "wrong"), [("scale", lambda scale: scale * 1.01), ("zero_point", lambda zero: zero + 1)]
)
def test_a_wrong_scale_or_zero_point_is_not_taken_for_a_tie(name: str, wrong: Callable[[Any], Any]) -> None:
    for seed in range(4):
        ir, weights = quantized_layers(seed, "w8a8")
        other = ir.clone()
        last = [node for node in other.nodes if "dequantize_per_tensor" in node.op_type][-1]
        last.attrs[name] = wrong(last.attrs[name])

        def run(values: Sequence[Any], ir: IR = other, weights: dict[str, Tensor] = weights) -> Sequence[Any]:
            return IRExecutor(ir, weights).run(values).outputs

        with pytest.raises(ExecutionError, match="does not compute"):
            verifying.verify("mine", run, ir, weights)


def test_auto_does_not_choose_a_back_end_that_differs(runs: Any, tmp_path: Any, monkeypatch: Any) -> None:
    """It is compared on inputs of its own: those of the first call, all zeros, would not show the error."""
    monkeypatch.setenv("TORCH_IR_CACHE", str(tmp_path))
    runs(off=0.01, beyond=-1)
    table._BACKENDS["auto"] = auto
    monkeypatch.setattr(Tensor, "__add__", lambda one, other: one.where(one == 0, one.sub(-other)))  # zeros stay
    compiled = compile(graph(torch.relu, X), {}, backend="auto")
    compiled(torch.zeros(3))
    assert compiled.backend == "torch"
    assert "mine" in compiled.why


def test_the_command_line_compares_too(runs: Any, tmp_path: Any, capsys: pytest.CaptureFixture[str]) -> None:
    runs(off=0.01)
    graph(torch.relu, X).save(tmp_path / "relu.json")
    call = ["run", str(tmp_path / "relu.json"), "--weights", "random", "--backend", "mine"]
    assert main(call) == 1
    assert "mine does not compute Function as the executor does" in capsys.readouterr().err


def test_another_version_is_reported_once_and_compared(runs: Any) -> None:
    calls = runs(version="0.1", relu="float32")
    ir = graph(torch.relu, X)
    with pytest.warns(
        BackendWarning, match=r"^back end .* was compared with eager for torch 0\.1, not for \d.*; each compiled"
    ):
        compile(ir, {}, backend="mine")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        compile(ir, {}, backend="mine")
    assert len(calls) == 4


def test_a_difference_in_another_version_is_an_error(runs: Any) -> None:
    runs(off=0.01, version="0.1", relu="float32")
    with pytest.warns(BackendWarning), pytest.raises(ExecutionError, match="does not compute"):
        compile(graph(torch.relu, X), {}, backend="mine")


def test_random_numbers_cannot_be_compared(runs: Any) -> None:
    runs(off=0.01)
    with pytest.warns(BackendWarning, match=r"aten.rand_like.default \(float32\).*cannot be here: .* random numbers"):
        compile(graph(torch.rand_like, X), {}, backend="mine")


def test_inputs_that_the_executor_rejects_cannot_be_compared(runs: Any) -> None:
    """Random indices are up to 7."""
    runs()
    with pytest.warns(BackendWarning, match=r"aten.index_select.default .* cannot be here: the executor does not run"):
        compile(graph(lambda x, i: x.index_select(0, i), X, torch.tensor([0] * 20)), {}, backend="mine")


@pytest.mark.parametrize(("values", "count"), [(["nan", "large"], 2), (["ties", "nan"], 1), (None, 1)])
def test_a_listed_deviation_is_not_taken_for_an_error(
    runs: Any, monkeypatch: pytest.MonkeyPatch, values: list[str] | None, count: int
) -> None:
    """A back end that orders equal elements in another way is compared on random inputs alone."""
    calls = runs()
    when = {} if values is None else {"values": values}
    row = Row("mine", "aten.relu.default", when, DEVIATION, "orders equal elements in another way", "mine 1")
    monkeypatch.setattr(deviations_module, "rows", lambda: (row,))
    compile(graph(torch.relu, X), {}, backend="mine")
    assert len(calls) == count


def test_a_back_end_of_the_user_is_not_compared(runs: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = runs()
    monkeypatch.setattr(swept, "tables", dict)
    compile(graph(torch.relu, X), {}, backend="mine")
    assert calls == []


def test_the_file_is_sound() -> None:
    """Operators exist, and every back end that is not the executor is in it."""
    assert {*tables(), "torch", "auto"} >= {*table.list_backends()}
    for record in tables().values():
        assert [name for name in record.operators if find_operator(name) is None] == []


def test_the_file_is_made_from_records() -> None:
    """Combinations that were compared and are nowhere silently wrong; those of the same version are kept."""

    def record(op: str, dtype: str, verdict: str, size: Any = 2) -> dict[str, Any]:
        node = {"op": op, "attrs": {}, "given": [], "dtypes": [dtype], "shapes": [[size]], "made": ["bool"]}
        return {"backend": "mine", "values": "sample", "verdict": verdict, "detail": "", "nodes": [node]}

    kinds = [("a", "int8", "same"), ("a", "int8", "wrong"), ("a", "int16", "rounding"), ("b", "int8", "refused")]
    assert pairs_of([record("c", "int8", "same", "batch")]) == {"mine": {"c": {"bool int8 open"}}}
    found = pairs_of(record(*kind) for kind in kinds)
    assert found == {"mine": {"a": {"bool int16"}}}
    first = updated({}, found)
    assert updated(first, {"mine": {"a": {"float32"}}})["mine"]["operators"] == {"a": "bool int16, float32"}
    first["mine"]["version"] = "0.1"
    assert updated(first, {"mine": {"a": {"float32"}}})["mine"]["operators"] == {"a": "float32"}
