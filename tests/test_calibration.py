"""Calibrated devices: the fit, predictions by hand, files, and the commands."""

from __future__ import annotations

import json
import math
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import torch_ir
from tests.damage.planning_files import DEVICE
from tests.proof import captured_entry
from torch_ir import optimize
from torch_ir.analysis import Calibration, cost_report, find_device, load_device, run_time, save_device
from torch_ir.analysis.devices.calibration import MODES, GridKey, Overheads
from torch_ir.analysis.devices.device_file import device_of, to_text
from torch_ir.analysis.devices.operator_families import AXES
from torch_ir.analysis.devices.published_devices import PUBLISHED
from torch_ir.analysis.devices.time_grid import Grid, fitted, indices
from torch_ir.calibration import calibrate
from torch_ir.calibration.measure_overheads import Sample, overheads_of
from torch_ir.calibration.operator_cases import CASES
from torch_ir.calibration.timers import CpuTimer
from torch_ir.cli.dispatch import main
from torch_ir.errors import DeviceError

SIZES = (64.0, 256.0, 1024.0, 4096.0)
BYTES = tuple(float(4**power) for power in range(6, 14))


def sampled(axes: tuple[tuple[float, ...], ...], seconds: Callable[..., float]) -> dict[tuple[int, ...], float]:
    """Measure a known function on a grid."""
    return {
        index: seconds(*(axis[number] for axis, number in zip(axes, index, strict=True))) for index in indices(axes)
    }


def device(**given: Any) -> Calibration:
    """A device of round numbers: 1 GFLOP/s, 1 GB/s, 1 µs to start a kernel, 10 µs for one of a matrix product."""
    grids = {
        GridKey("matmul", "float32"): fitted((SIZES,) * 3, sampled((SIZES,) * 3, lambda m, n, k: 2 * m * n * k / 1e9)),
        GridKey("pointwise", "float32"): fitted((BYTES,), sampled((BYTES,), lambda size: size / 1e9)),
        GridKey("gelu", "float32"): fitted((BYTES,), sampled((BYTES,), lambda size: 3 * size / 1e9)),
    }
    facts: dict[str, Any] = {
        "name": "a device", "kind": "cpu", "threads": 1, "torch": "2.13", "cache": 0.0, "grids": grids,
        "dispatch": {"float32": {"pointwise": 1e-6, "view": 0.5e-6, "matmul": 10e-6}},
    }  # fmt: skip
    return Calibration(1e9, 1e9, **{**facts, **given})


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(256, 512)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(nn.functional.gelu(self.linear(x)) + 1)


@pytest.fixture(scope="module")
def graph() -> torch_ir.IR:
    return torch_ir.extract_ir(Net().eval(), (torch.ones(128, 256),), strict=False)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, graph: torch_ir.IR) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TORCH_IR_CACHE", str(tmp_path / "cache"))
    graph.save("net.json")
    return tmp_path


# -- the fit ----------------------------------------------------------------------------------------------------------


def test_a_product_of_sizes_is_recovered_between_and_beyond_the_points() -> None:
    grid = fitted((SIZES,) * 3, sampled((SIZES,) * 3, lambda m, n, k: 2e-11 * m * n * k))
    for sizes in [(100, 300, 700), (64, 4096, 999), (8192, 100, 20000)]:
        assert grid.at(sizes) == pytest.approx(2e-11 * math.prod(sizes))
    assert grid.at((1, 64, 64)) == pytest.approx(2e-11 * 64**3)  # below the first size it stays


def test_a_roofline_with_latency_is_recovered_within_a_few_per_cent() -> None:
    """2 µs, 100 GFLOP/s, 10 GB/s: what the calibration of such a device must find at other sizes."""

    def seconds(m: float, n: float, k: float) -> float:
        return 2e-6 + max(2 * m * n * k / 100e9, 4 * (m * k + n * k + m * n) / 10e9)

    rows = (1.0, 4.0, 16.0, 64.0, 256.0, 1024.0)
    grid = fitted((rows, SIZES, SIZES), sampled((rows, SIZES, SIZES), seconds))
    draw = random.Random(0)
    errors = []
    for _ in range(300):
        sizes = (draw.uniform(1, 1024), draw.uniform(64, 4096), draw.uniform(64, 4096))
        errors.append(abs(grid.at(sizes) / seconds(*sizes) - 1))
    assert sorted(errors)[len(errors) // 2] < 0.03
    assert max(errors) < 0.3  # where the roof bends


def test_points_that_were_not_measured_are_filled_in() -> None:
    """Inner ones by interpolation, those of the most work by extrapolation."""
    axes = (SIZES, SIZES, SIZES)
    whole = sampled(axes, lambda m, n, k: 1e-9 * m * n * k)
    draw = random.Random(1)
    some = {index: value for index, value in whole.items() if draw.random() < 0.5 and sum(index) < 8}
    assert fitted(axes, some).seconds == pytest.approx(fitted(axes, whole).seconds)


@pytest.mark.parametrize("seed", range(5))
def test_more_work_never_takes_less_time(seed: int) -> None:
    """Whatever the noise of the measurements."""
    draw = random.Random(seed)
    axes = (SIZES, (1.0, 9.0, 49.0))
    grid = fitted(axes, sampled(axes, lambda m, n: m * n * draw.uniform(0.1, 5)))
    for _ in range(200):
        one, other = draw.uniform(1, 9000), draw.uniform(1, 100)
        grown = (one * draw.uniform(1, 4), other * draw.uniform(1, 4))
        assert grid.at(grown) >= grid.at((one, other)) * (1 - 1e-12)


# -- predictions ------------------------------------------------------------------------------------------------------


def test_a_prediction_by_hand(graph: torch_ir.IR) -> None:
    """linear 128x256 @ 256x512, then gelu, add and relu over 128x512."""
    tensor = 4 * 128 * 512
    matmul, gelu, others = 2 * 128 * 256 * 512 / 1e9, 3 * 2 * tensor / 1e9, 2 * 2 * tensor / 1e9
    found = run_time(graph, device(), "executor")
    assert found.kernels == pytest.approx(matmul + gelu + others)
    assert found.dispatch == pytest.approx(10e-6 + 3e-6)


def test_compiled_code_fuses_what_follows_a_matrix_product(graph: torch_ir.IR) -> None:
    """One kernel reads and writes the tensor once, and has the arithmetic of gelu."""
    tensor = 4 * 128 * 512
    matmul, fused, arithmetic = 2 * 128 * 256 * 512 / 1e9, 2 * tensor / 1e9, 2 * 2 * tensor / 1e9
    found = run_time(graph, device(), "compiled")
    assert found.kernels == pytest.approx(matmul + fused + arithmetic)
    assert found.dispatch == pytest.approx(10e-6 + 1e-6)


def test_a_gpu_starts_kernels_while_others_run(graph: torch_ir.IR) -> None:
    slow = device(kind="cuda", dispatch={"float32": {"pointwise": 1.0, "matmul": 1.0}})
    found = run_time(graph, slow, "executor")
    assert found.seconds == found.dispatch == 4.0
    assert run_time(graph, device(kind="cuda"), "executor").seconds == pytest.approx(found.kernels)
    assert run_time(graph, slow, "compiled").dispatch == 0  # a CUDA graph


def test_a_family_without_a_grid_takes_what_the_roofline_says() -> None:
    """A device file may have fewer families than a graph; none of its nodes takes no time for that."""
    ir = torch_ir.extract_ir(nn.Conv2d(3, 8, 3).eval(), (torch.ones(2, 3, 10, 10),), strict=False)
    flops = 2 * (2 * 8 * 8 * 8) * 3 * 3 * 3
    assert run_time(ir, device(), "executor").kernels == pytest.approx(flops / 1e9, rel=0.1)


class Attending(nn.Module):
    """Attention with a mask of some shape, expanded to all keys."""

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        return nn.functional.scaled_dot_product_attention(x, x, x, attn_mask=mask.expand(1, 1, 16, 16))


@pytest.mark.parametrize(("keys", "seconds"), [(16, 3e-6), (1, 5e-6)])
def test_a_mask_with_one_value_for_all_keys_is_a_family(keys: int, seconds: float) -> None:
    """A GPU has no fused kernel for it; a device that was measured without this family takes that of other masks."""
    given = (torch.ones(1, 2, 16, 8), torch.ones(1, 1, 16, keys, dtype=torch.bool))
    graph = torch_ir.extract_ir(Attending().eval(), given, strict=False)
    started = {"pointwise": 1e-6, "view": 0.0, "masked_attention": 3e-6}
    with_family = device(dispatch={"float32": {**started, "broadcast_mask_attention": 5e-6}})
    assert run_time(graph, with_family, "executor").dispatch == pytest.approx(seconds)
    assert run_time(graph, device(dispatch={"float32": started}), "executor").dispatch == pytest.approx(3e-6)


def test_overheads_of_modes(graph: torch_ir.IR) -> None:
    """Eager code calls modules, here the model and its layer; there, and in the executor, each node has a cost."""
    nodes = {"eager_node": 1e-4, "executor_node": 1e-2}
    overheads = Overheads(module=1e-3, **nodes, eager_run=1.0, executor_run=2.0, compiled_run=3.0)
    plain, costly = device(), device(overheads=overheads)
    for mode, extra in [("eager", 1.0024), ("executor", 2.04), ("compiled", 3.0)]:
        assert run_time(graph, costly, mode).seconds - run_time(graph, plain, mode).seconds == pytest.approx(extra)


def test_overheads_explain_what_the_reference_models_take() -> None:
    one = Overheads(eager_run=1.0, executor_run=2.0, compiled_run=3.0)
    samples = {
        "eager": [Sample(5.0, modules=3, nodes=4), Sample(8.0, modules=6, nodes=6)],  # a module takes 1 s
        "executor": [Sample(4.0, modules=3, nodes=4), Sample(8.0, modules=6, nodes=8)],
        "compiled": [Sample(-2.0, modules=3, nodes=2), Sample(-1.0, modules=6, nodes=2)],  # it overlaps by at least 1 s
    }
    found = overheads_of(one, 1.0, samples)
    assert found == Overheads(1.0, 0.4, 1.0, 0.0, 1.0, 2.0, 2.0)
    uncompiled = overheads_of(one, 1.0, {**samples, "compiled": []})
    assert (uncompiled.compiled_node, uncompiled.compiled_run) == (1.0, 2.0)


def test_weights_that_fit_into_the_cache(graph: torch_ir.IR) -> None:
    grids = {**device().grids, GridKey("matmul", "float32", "cache"): Grid(((1.0,),) * 3, (1e-12,))}
    warm, cold = (run_time(graph, device(grids=grids, cache=size), "executor") for size in (1e8, 1e3))
    assert warm.kernels < cold.kernels == run_time(graph, device(), "executor").kernels


def test_the_report_adds_up(graph: torch_ir.IR) -> None:
    for mode in ("eager", "executor", "compiled"):
        report = cost_report(graph, "op", device=device(), mode=mode)
        assert report.total.seconds == pytest.approx(sum(row.seconds for row in report.rows))
        assert report.total.seconds == pytest.approx(run_time(graph, device(), mode).seconds)
        assert report.run_times[mode].seconds == pytest.approx(report.total.seconds)
    with pytest.raises(DeviceError, match="did you mean 'eager'"):
        cost_report(graph, mode="eagre")


# -- files ------------------------------------------------------------------------------------------------------------


def test_a_file_is_what_was_saved(tmp_path: Path, graph: torch_ir.IR) -> None:
    path = tmp_path / "device.json"
    save_device(device(), path)
    found = load_device(path)
    assert to_text(found) == path.read_text()
    assert run_time(graph, found, "compiled").seconds == pytest.approx(
        run_time(graph, device(), "compiled").seconds, rel=1e-3
    )


def _with(*keys: str | int, value: Any) -> Callable[[Any], None]:
    def change(document: Any) -> None:
        for key in keys[:-1]:
            document = document[key]
        document[keys[-1]] = value

    return change


DAMAGES: list[tuple[Callable[[Any], None], str]] = [
    (_with("format", value="other"), "expected 'torch_ir.device'"),
    (_with("version", value=2), "version 2 is not supported"),
    (_with("extra", value=1), "unknown key 'extra'"),
    (lambda document: document.pop("peak"), "$.peak: expected a number above 0"),
    (lambda document: document.pop("grids"), "'grids' is missing"),
    (_with("peak", value=True), "expected a number above 0"),
    (_with("peak", value=-1), "expected a number above 0"),
    (_with("bandwidth", value=1e300), "expected a number above 0, at most 1e+30"),
    (_with("name", value="a\nb"), "printable characters"),
    (_with("name", value="x" * 300), "at most 200 printable characters"),
    (_with("kind", value="abacus"), "unknown kind 'abacus'"),
    (_with("threads", value=0), "expected 1 to 65536"),
    (_with("grids", value={}), "expected a list"),
    (_with("grids", 0, value=7), "expected an object"),
    (_with("grids", 0, "family", value="juggling"), "unknown family 'juggling'"),
    (_with("grids", 0, "dtype", value="float7"), "unknown dtype 'float7'"),
    (_with("grids", 0, "weights", value="tape"), "unknown weights 'tape'"),
    (_with("grids", 0, "axes", value=[[1, 2]]), "matmul has 3 axes (rows, columns, depth), not 1"),
    (_with("grids", 0, "axes", 0, value=[]), "expected 1 to 64 sizes, found 0"),
    (_with("grids", 0, "axes", 0, value=list(range(1, 100))), "expected 1 to 64 sizes, found 99"),
    (_with("grids", 0, "axes", 0, value=[4, 2, 1, 8]), "ascending order"),
    (_with("grids", 0, "axes", 0, 0, value="1"), "expected a number above 0"),
    (_with("grids", 0, "seconds", value=[1.0]), "for each of 64 points, found 1"),
    (_with("grids", 0, "seconds", 3, value=0), "expected a number above 0"),
    (_with("grids", 0, "seconds", 3, value=None), "expected a number above 0"),
    (lambda document: document["grids"].append(document["grids"][0]), "a second grid of matmul float32 memory"),
    (_with("dispatch", "float32", "pointwise", value=-1), "expected a number above 0"),
    (_with("dispatch", "float7", value={}), "float7"),
    (_with("dispatch", "float32", value=[]), "expected an object"),
    (_with("overheads", "coffee", value=1), "unknown key 'coffee'"),
    (_with("overheads", "module", value="1"), "expected a number above 0"),
]


@pytest.mark.parametrize(("damage", "message"), DAMAGES, ids=[message for _, message in DAMAGES])
def test_damaged_files(damage: Callable[[Any], None], message: str, tmp_path: Path) -> None:
    document = json.loads(to_text(device()))
    damage(document)
    path = tmp_path / "device.json"
    path.write_text(json.dumps(document))
    with pytest.raises(DeviceError) as raised:
        load_device(path)
    assert message in str(raised.value)
    assert str(path) in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("text", ["", "{", "[]", "\0", '{"format": NaN}', "[" * 5000, " " * 9_000_000])
def test_files_that_are_no_device(text: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("device.json").write_text(text)
    assert main(["cost", "net.json", "--device", "device.json"]) == 1
    told = capsys.readouterr().err
    assert told.startswith("torch-ir: error: device.json is not a device file: ")
    assert told.count("\n") == 1


# -- names and commands -----------------------------------------------------------------------------------------------


def test_published_devices() -> None:
    for name, each in PUBLISHED.items():
        assert each.source.startswith("https://"), name
        assert find_device(name.lower().replace("-", "")) == each.roofline
        assert 5 < each.roofline.ridge < 700, name  # FLOPs per byte of accelerators
    assert find_device("peak=1T,bw=1G").peak == 1e12
    with pytest.raises(DeviceError, match="did you mean 'H100'"):
        find_device("H10")


def test_cost_on_this_machine(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cost", "net.json", "--device", "this"]) == 1
    told = capsys.readouterr().err
    assert told == (
        "torch-ir: error: this machine is not calibrated yet; run torch-ir calibrate, which takes a few minutes\n"
    )
    save_device(device(), folder / "cache" / "device-cpu.json")
    assert main(["cost", "net.json", "--device", "this", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    expected = run_time(torch_ir.IR.load("net.json"), device(), "executor").seconds
    assert found["modes"]["executor"]["seconds"] == pytest.approx(expected, rel=1e-3)
    assert found["total"]["seconds"] == pytest.approx(expected, rel=1e-3)
    assert main(["cost", "net.json", "--device", "this:cpu", "--mode", "compiled", "--by", "op"]) == 0
    told = capsys.readouterr().out
    assert "fused.kernel" in told
    assert "device: a device, 1.00 GFLOP/s" in told
    assert "FLOPs per byte; measured with 1 thread in torch 2.13\n" in told  # it may be another one than this
    assert main(["plan", "net.json", "--devices", "2", "--memory", "1GB", "--device", "this"]) == 0


def test_a_call_that_no_clock_sees_takes_some_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock of CPU time may stand still; rates are work divided by seconds."""
    for clock in ("process_time", "perf_counter"):
        monkeypatch.setattr(time, clock, lambda: 1.0)
    assert CpuTimer().kernel([lambda: None]) > 0


def test_a_calibration_in_a_second(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """All families are measured, whatever the time limit, and the file predicts."""
    words = ["calibrate", "--minutes", "0.001", "--no-compiler", "--threads", "1"]
    assert main(words) == 0
    assert "-> " in capsys.readouterr().out
    found = find_device("this")
    assert isinstance(found, Calibration)
    assert {key.family for key in found.grids} == set(AXES) - {"view", "broadcast_mask_attention"}
    assert found.threads == 1
    for mode in ("eager", "executor", "compiled"):
        assert 0 < run_time(torch_ir.IR.load("net.json"), found, mode).seconds < 10


def test_every_family_has_a_case() -> None:
    assert set(CASES) == set(AXES)


def test_an_interrupt_leaves_no_file(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("torch_ir.calibration.timers.CpuTimer.kernel", interrupted)
    assert main(["calibrate", "-o", "device.json"]) == 130
    assert sorted(path.name for path in folder.iterdir()) == ["net.json"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--minutes", "0"], "a calibration takes more than 0 minutes and at most a day, not 0"),
        (["--minutes", "nan"], "a calibration takes more than 0 minutes and at most a day, not nan"),
        (["--threads", "0"], "--threads must be at least 1, not 0"),
        (["--dtype", "float23"], "cannot calibrate 'float23'; did you mean 'float32'?; expected float32 or bfloat16"),
        (["--device", "cuda"], "torch finds no CUDA device on this machine; calibrate the CPU instead"),
    ],
)
def test_bad_requests(
    words: list[str], message: str, folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert main(["calibrate", *words]) == 1
    assert capsys.readouterr().err == f"torch-ir: error: {message}\n"


def test_in_python() -> None:
    with pytest.raises(DeviceError, match="expected cpu or cuda"):
        calibrate("abacus")


@pytest.mark.parametrize("mode", MODES)
def test_products_inside_fused_operators_of_branches(mode: str) -> None:
    """They take longer than an operator that moves as many bytes, whatever the sizes of a product are."""
    better = optimize(captured_entry("control_flow"), "full")[0]
    fused = [node for node in better.all_nodes() if node.op_type.startswith("fused.")]
    assert any(node.op_type.startswith("fused.linear") for node in fused)
    assert cost_report(better, device=device_of(DEVICE), mode=mode).total.seconds > 0
