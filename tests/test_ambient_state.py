"""Settings of the process, at capture and when a graph runs: the graph keeps those of its capture, or raises."""

import threading
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.ambient_sweep import MODES, ROADS, Factories, Promotions, outcomes, sample, setting_cases
from tests.proof import module
from torch_ir import IR, CaptureWarning, ConversionError, ExecutionError, IRExecutor, extract_ir
from torch_ir import compile as compiled
from torch_ir.safety import load_ir
from torch_ir.verify import verify_ir_with_state_dict


def capture(model: nn.Module, *inputs: Any, road: str = "auto") -> IR:
    return extract_ir(model.eval(), inputs, strict=False, capture=road)


def test_sampled_settings() -> None:
    """Captured under one setting and run under all of them: equal to eager under the first."""
    counts, wrong = outcomes(sample(setting_cases(), 5, seed=7))
    assert wrong == []
    assert counts["same"] == 45


@pytest.mark.slow
@pytest.mark.parametrize("road", ROADS)
def test_every_setting(road: str) -> None:
    counts, wrong = outcomes([case for case in setting_cases() if case.road == road])
    assert wrong == []
    assert counts["refused when run"] == 0
    assert counts["same"] > 400


# -- default dtype and device ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", [Factories, Promotions])
def test_a_default_dtype_is_written_into_the_graph(model: type[nn.Module]) -> None:
    """Both ways to capture write the same file, and under float32 nothing is added."""
    x = torch.ones(2, 4)
    with MODES["default dtype float64"]():
        quick, exported = capture(model(), x), capture(model(), x, road="export")
        expected = model()(x)
    assert quick.to_json() == exported.to_json()
    outputs = IRExecutor(quick, {})(x)
    assert [output.dtype for output in outputs] == [output.dtype for output in expected]
    assert all(map(torch.equal, outputs, expected))
    made_of_nothing = [node for node in capture(model(), x).nodes if not node.inputs]
    assert not any(node.attrs["dtype"] for node in made_of_nothing)


def test_a_default_dtype_with_open_sizes() -> None:
    few, more = torch.ones(3, 4), torch.ones(5, 4)
    with MODES["default dtype float64"]():
        shapes = {"x": {0: torch.export.Dim("n")}}
        ir = extract_ir(_Ramp().eval(), (few,), strict=False, dynamic_shapes=shapes)
        expected = _Ramp()(more)
    (output,) = IRExecutor(ir, {}).execute((more,))
    assert output.dtype == expected.dtype == torch.float64
    assert torch.equal(output, expected)


class _Ramp(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.arange(x.shape[0]) / 3 + torch.ones(x.shape[0])


class _Sets(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        torch.set_default_dtype(torch.float64)
        try:
            return x + torch.full((4,), 0.1)
        finally:
            torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize("road", ROADS)
def test_a_default_dtype_that_forward_sets(road: str) -> None:
    x = torch.ones(2, 4)
    expected = _Sets()(x)
    output = IRExecutor(capture(_Sets(), x, road=road), {})(x)
    assert output.dtype == expected.dtype == torch.float64
    assert torch.equal(output, expected)


class _Close(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.isclose(x, x + 1)


def test_counts_of_integer_weights_are_float64_by_themselves() -> None:
    """`bincount` takes no dtype from torch's default, and torch has no shape rule that could say so."""
    model = module(lambda self, x, w: torch.bincount(x, w, minlength=6))
    ir = extract_ir(model, (torch.tensor([1, 1, 3]), torch.tensor([2, 3, 4])), strict=False)
    assert ir.graph_outputs[0].dtype == "float64"


def test_integers_that_are_compared_in_the_default_dtype() -> None:
    with MODES["default dtype float64"](), pytest.raises(ConversionError, match=r"isclose.*set_default_dtype"):
        capture(_Close(), torch.arange(3))
    assert not IRExecutor(capture(_Close(), torch.arange(3)), {})(torch.arange(3)).any()


def test_a_file_is_checked_under_float32(tmp_path: Any) -> None:
    """Results of operators are inferred under the settings of graphs, and cached."""
    path = tmp_path / "graph.json"
    capture(Factories(), torch.ones(2, 4)).save(path)
    with MODES["default dtype float64"]():
        load_ir(path)
    assert load_ir(path).to_json() == path.read_text()


def test_runs_in_threads_leave_the_default_dtype() -> None:
    """The default dtype is one for all threads: the last run sets it back."""
    x = torch.ones(2, 4)
    executor = IRExecutor(capture(Promotions(), x), {})
    expected = Promotions()(x)
    same = []

    def run() -> None:
        same.extend(all(map(torch.equal, executor(x), expected)) for _ in range(20))

    with MODES["default dtype float64"]():
        threads = [threading.Thread(target=run) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert torch.get_default_dtype() == torch.float64
    assert same == [True] * 80


# -- autocast --------------------------------------------------------------------------------------------------------


class _Product(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: Tensor, scale: float = 2.0) -> Tensor:
        return self.linear(x).softmax(-1) * scale


@pytest.mark.parametrize("road", ROADS)
def test_an_outer_autocast_is_the_models_own(road: str) -> None:
    model, x = _Product().eval(), torch.randn(2, 4)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        expected = model(x)
        ir = capture(model, x, road=road)
        passed, report = verify_ir_with_state_dict(ir, model.state_dict(), model, (x,))
    assert passed, report
    for mode in (nullcontext, MODES["autocast"]):
        with mode():
            output = IRExecutor(ir, model.state_dict())(x)
        assert output.dtype == expected.dtype
        assert torch.equal(output, expected)
    assert "forward" not in vars(model)


def test_an_outer_autocast_gives_one_graph() -> None:
    """As a region in forward does: the same bytes, but for the line."""

    class Inner(_Product):
        def forward(self, x: Tensor, scale: float = 2.0) -> Tensor:
            with torch.autocast("cpu", dtype=torch.bfloat16):
                return super().forward(x, scale)

    inside = capture(Inner(), torch.ones(2, 4))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        outside = capture(_Product(), torch.ones(2, 4))
    assert str(inside).replace("Inner", "_Product") == str(outside)


def test_weights_are_prepared_without_autocast() -> None:
    """The prologue, the passes and the back ends run a graph as the executor does."""
    model, x = _Product().eval(), torch.randn(2, 4)
    ir, expected = capture(model, x), model(x)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output = compiled(ir, model.state_dict(), backend="torch")(x)
    torch.testing.assert_close(output, expected)


# -- grad and inference mode -----------------------------------------------------------------------------------------


class _Count(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.count.add_(1)
        return x * self.count


def test_buffers_of_a_run_in_inference_mode_can_be_written_to() -> None:
    executor = IRExecutor(capture(_Count(), torch.ones(2)), _Count().state_dict())
    with torch.inference_mode():
        executor(torch.ones(2))
    executor.state["count"].add_(1)
    assert torch.equal(executor(torch.ones(2)), torch.full((2,), 3.0))


@pytest.mark.parametrize("road", ROADS[:2])
@pytest.mark.parametrize("mode", ["inference mode", "no grad", "deterministic"])
def test_modes_leave_the_graph_as_it_is(mode: str, road: str) -> None:
    with MODES[mode]():
        inside = capture(_Product(), torch.ones(2, 4), road=road)
    assert inside.to_json() == capture(_Product(), torch.ones(2, 4), road=road).to_json()


# -- questions -------------------------------------------------------------------------------------------------------


class _Asks(nn.Module):
    def __init__(self, question: Callable[[], Any]) -> None:
        super().__init__()
        self.question = question

    def forward(self, x: Tensor) -> Tensor:
        return x * 2 if self.question() else x


QUESTIONS: dict[str, Callable[[], Any]] = {
    "is_grad_enabled": lambda: torch.is_grad_enabled(),
    "is_inference_mode_enabled": lambda: torch.is_inference_mode_enabled(),
    "get_default_dtype": lambda: torch.get_default_dtype() == torch.float32,
    "is_autocast_enabled": lambda: torch.is_autocast_enabled("cpu"),
    "are_deterministic_algorithms_enabled": lambda: torch.are_deterministic_algorithms_enabled(),
}


@pytest.mark.parametrize("road", ROADS)
@pytest.mark.parametrize("name", QUESTIONS)
def test_what_forward_asks_of_the_process_is_told(name: str, road: str) -> None:
    with pytest.warns(CaptureWarning, match=rf"test_ambient_state.py:\d+ reads torch.{name}\(\), which is"):
        capture(_Asks(QUESTIONS[name]), torch.ones(2), road=road)


# -- random numbers --------------------------------------------------------------------------------------------------


class _Seeds(nn.Module):
    def __init__(self, seed: Callable[[], AbstractContextManager[Any] | None], draws: bool = True) -> None:
        super().__init__()
        self.seed, self.draws = seed, draws

    def forward(self, x: Tensor) -> Tensor:
        with self.seed() or nullcontext():
            return x + torch.rand(3) if self.draws else x + 1


def _manually() -> None:
    torch.manual_seed(3)


def _by_state() -> None:
    torch.set_rng_state(torch.get_rng_state())


@pytest.mark.parametrize("road", ROADS)
@pytest.mark.parametrize("seed", [_manually, _by_state, lambda: torch.random.fork_rng()])
def test_seeds_inside_of_forward_are_refused(seed: Any, road: str) -> None:
    before = torch.get_rng_state()
    with pytest.raises(ConversionError, match=r"test_ambient_state.py:\d+: forward sets torch's random state"):
        capture(_Seeds(seed), torch.ones(3), road=road)
    assert torch.equal(torch.get_rng_state(), before)


def test_a_seed_that_nothing_is_drawn_from_is_told() -> None:
    with pytest.warns(CaptureWarning, match="sets torch's random state with torch.manual_seed"):
        ir = capture(_Seeds(_manually, draws=False), torch.ones(3))
    assert torch.equal(IRExecutor(ir, {})(torch.ones(3)), torch.full((3,), 2.0))


class _Generator(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x + torch.rand(3, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("road", ROADS)
def test_a_generator_of_its_own_is_refused(road: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own, about the graph that is thrown away
        with pytest.raises(ConversionError):
            capture(_Generator(), torch.ones(3), road=road)


# -- arguments that are frozen ---------------------------------------------------------------------------------------


class _Frozen(nn.Module):
    def forward(self, x: Tensor, n: Any, dtype: Any = torch.float64) -> tuple[Any, ...]:
        return (x * n).to(dtype), n, dtype, x.device, torch.strided, torch.channels_last


FROZEN = (2, 2.0, True, 1, 1.0, 0.0, -0.0, float("nan"), False, 0)


@pytest.mark.parametrize("value", FROZEN, ids=repr)
def test_an_argument_is_the_captured_one_to_its_class(value: Any) -> None:
    executor = IRExecutor(IR.from_json(capture(_Frozen(), torch.ones(2), value).to_json()), {})
    for other in FROZEN:
        if repr(other) == repr(value):
            executor(torch.ones(2), other)
        else:
            with pytest.raises(ExecutionError, match="but the graph was captured for"):
                executor(torch.ones(2), other)


@pytest.mark.parametrize("road", ["auto", "record"])
def test_dtypes_and_devices_stay_what_they_are(road: str) -> None:
    model, x = _Frozen().eval(), torch.ones(2)
    ir = IR.from_json(capture(model, x, 2, torch.float16, road=road).to_json())
    expected, found = model(x, 2, torch.float16), IRExecutor(ir, {})(x, 2, torch.float16)
    assert [type(value) for value in found] == [type(value) for value in expected]
    assert found[1:] == expected[1:]
    assert torch.equal(found[0], expected[0])
    passed, report = verify_ir_with_state_dict(ir, {}, model, (x, 2, torch.float16))
    assert passed, report
    with pytest.raises(ExecutionError, match=r"is torch.float32, but the graph was captured for torch.float16"):
        IRExecutor(ir, {})(x, 2, torch.float32)


def test_a_number_that_varies_keeps_its_class() -> None:
    shapes = {"x": None, "n": torch.export.Dim.DYNAMIC}
    ir = extract_ir(_Repeats().eval(), (torch.ones(2), 3), strict=False, dynamic_shapes=shapes)
    assert torch.equal(IRExecutor(ir, {})(torch.ones(2), 5), torch.full((2,), 6.0))
    for other in (5.0, True):
        with pytest.raises(ExecutionError, match="must be int64, not"):
            IRExecutor(ir, {})(torch.ones(2), other)


class _Repeats(nn.Module):
    def forward(self, x: Tensor, n: int) -> Tensor:
        return x + n
