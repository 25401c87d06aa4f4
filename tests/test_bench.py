"""`bench`: the statistics, the comparison of results before timing, and the command. No time is asserted."""

import json
import os
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from torch_ir import IR, OpNode, TensorMeta, extract_ir
from torch_ir.cli.dispatch import main
from torch_ir.cli.verb import BACKENDS
from torch_ir.run.benchmark import Spread, Timing, bench, difference, race, threads


class Clock:
    """A clock that advances only when an action says so."""

    def __init__(self) -> None:
        self.now = 0.0
        self.order: list[str] = []

    def __call__(self) -> float:
        return self.now

    def action(self, name: str, *seconds: float) -> Callable[[], None]:
        """An action that takes these seconds per call, and then the last of them."""
        left = list(seconds)

        def act() -> None:
            self.order.append(name)
            self.now += left.pop(0) if len(left) > 1 else left[0]

        return act


def test_a_spread_is_the_median_and_the_quartiles() -> None:
    assert Spread.of([5.0, 1.0, 3.0, 2.0, 4.0]) == Spread(3.0, 2.0, 4.0)
    assert Spread.of([7.0]) == Spread(7.0, 7.0, 7.0)


def test_the_ratio_is_that_of_each_round() -> None:
    """When the machine is slow for a while, it is slow for all, and the ratio does not show it."""
    clock = Clock()
    warm = (1.0,) * 3
    one, two = (1, 1, 1, 1, 8, 8, 8, 8), (2, 2, 2, 2, 16, 16, 16, 16)
    actions = {"one": clock.action("one", *warm, *one), "two": clock.action("two", *warm, *two)}
    found = race(actions, 4, clock=clock)
    assert found["one"] == Timing(Spread(4.5, 1.0, 8.0), Spread(1.0, 1.0, 1.0))
    assert found["two"] == Timing(Spread(9.0, 2.0, 16.0), Spread(2.0, 2.0, 2.0))


def test_another_one_begins_each_round() -> None:
    """So that none always runs after the same other one."""
    clock = Clock()
    done: list[int] = []
    race({name: clock.action(name, 1.0) for name in "abc"}, 4, progress=done.append, clock=clock)
    assert "".join(clock.order[9:]) == "aabbcc" + "bbccaa" + "ccaabb" + "aabbcc"
    assert done == [1, 2, 3, 4]


@pytest.mark.parametrize(
    ("others", "limits", "rounds"),
    [
        ((2.0,), {"margin": 1.1}, 3),  # slower in every round
        ((0.5, 2.0), {"margin": 1.1}, 3),  # one is faster, one is slower
        ((1.05,), {"margin": 1.1}, 6),  # too close
        ((2.0, 1.0), {"margin": 1.1}, 6),
        ((1.0,), {"budget": 15.0}, 4),  # a round takes four seconds
        ((2.0,), {"budget": 1.0}, 3),  # never fewer
        ((2.0,), {}, 6),
    ],
)
def test_a_race_ends_when_it_is_decided(others: tuple[float, ...], limits: dict[str, float], rounds: int) -> None:
    clock = Clock()
    done: list[int] = []
    actions = {str(at): clock.action(str(at), seconds) for at, seconds in enumerate((1.0, *others))}
    race(actions, 6, progress=done.append, clock=clock, **limits)
    assert done[-1] == rounds


def test_one_round_the_other_way_leaves_a_race_open() -> None:
    clock = Clock()
    done: list[int] = []
    warm = (1.0,) * 3
    changing = clock.action("b", *warm, 2, 2, 2, 2, 2, 0.5, 2)  # of each two calls in a round, the second is timed
    race({"a": clock.action("a", 1.0), "b": changing}, 6, progress=done.append, clock=clock, margin=1.1)
    assert done[-1] == 6


def test_what_is_quick_is_called_more_often() -> None:
    """A turn takes at least 5 ms, after an untimed call, and the time per call is reported."""
    clock = Clock()
    found = race({"slow": clock.action("slow", 1.0), "quick": clock.action("quick", 0.0005)}, 1, clock=clock)
    assert clock.order[6:].count("quick") == 11
    assert found["quick"].time.median == pytest.approx(0.0005)


def test_results_are_compared_before_anything_is_timed() -> None:
    """A contestant that returns something else, or fails, is not timed; the others are."""

    def fails() -> Any:
        raise ValueError("no such kernel\nat all")

    x = torch.ones(3)
    said: list[str] = []
    roads = {
        "first": lambda: lambda: {"y": x},
        "same": lambda: lambda: [x + 1e-7],
        "other": lambda: lambda: x + 1,
        "wide": lambda: lambda: x.double(),
        "more": lambda: lambda: (x, x),
        "fails": lambda: fails,
        "unmade": fails,
    }
    found = bench(roads, 2, progress=said.append)
    assert list(found) == list(roads)
    assert isinstance(found["first"], Timing)
    assert isinstance(found["same"], Timing)
    assert found["other"] == "its results differ: result 0: 3 of 3 elements are too far off, by up to 1"
    assert found["wide"] == ("its results differ: result 0: dtype torch.float64 instead of torch.float32, by up to inf")
    assert found["more"] == "its results differ: 2 results instead of 1"
    assert found["fails"] == found["unmade"] == "it fails: no such kernel"
    assert said == [*(f"preparing {name}" for name in roads), "round 1 of 2", "round 2 of 2", ""]


def test_the_first_road_must_work() -> None:
    """All others are measured relative to it."""
    with pytest.raises(ZeroDivisionError):
        bench({"first": lambda: lambda: 1 / 0}, 1)


def test_every_road_draws_the_same_random_numbers() -> None:
    found = bench({name: lambda: lambda: torch.rand(4) for name in ("one", "two")}, 1)
    assert isinstance(found["two"], Timing)


def test_tolerances_can_be_given() -> None:
    one, other = torch.ones(2), torch.full((2,), 1.01)
    assert "2 of 2 elements" in difference(one, other)
    assert difference(one, other, rtol=0.1) == difference(one, other, atol=0.1) == ""


def test_threads_are_put_back() -> None:
    before = torch.get_num_threads()
    with threads(1) as count:
        assert count == torch.get_num_threads() == 1
    assert torch.get_num_threads() == before


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        self.calls += 1
        return {"y": torch.relu(self.layer(x)) * self.calls}


MODEL = f"{Path(__file__).stem}:Net"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with `net.json`, and `wrong.json`, which computes something else."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    ir = extract_ir(Net().eval(), (torch.randn(2, 4),), strict=False)
    ir.save("net.json")
    for node in ir.nodes:
        node.op_type = node.op_type.replace("relu", "tanh")
    ir.save("wrong.json")
    torch.save(Net().state_dict(), "net.pt")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module=r"torch\..*|copyreg")
        yield tmp_path


def test_the_verb_times_files_and_roads(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Median and quartiles, the ratio to the first, and the weights used."""
    assert main(["bench", "net.json", "net.json", "--against", "eager", "--repeat", "2", "--threads", "1"]) == 0
    title, eager, *rows = capsys.readouterr().out.splitlines()
    assert title == "model: Net, weights: random, rounds: 2, threads: 1"
    assert eager == "eager: the ATen calls of net.json one by one; name the original with --model to run that"
    assert [row.split()[0] for row in rows] == ["net.json", "eager"]
    assert rows[1].endswith(" times as long as net.json")


def test_the_verb_in_json(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The model provides its weights, and is what `eager` runs; with a file, it gets the file's weights."""
    for more, whose in (([], MODEL), (["--weights", "net.pt"], "net.pt")):
        arguments = ["net.json", "--model", MODEL, "--against", "eager", "--repeat", "1", "--json", *more]
        assert main(["bench", *arguments]) == 0
        record = json.loads(capsys.readouterr().out)
        assert record["weights"] == f"of {whose}"
        assert record["eager"] == f"the model, {MODEL}"
        assert record["results"].keys() == {"net.json", "eager"}
        assert record["results"]["eager"]["time"].keys() == {"median", "low", "high"}


def test_a_graph_that_computes_something_else_has_no_speed(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "net.json", "wrong.json", "--repeat", "1"]) == 1
    *_, last = capsys.readouterr().out.splitlines()
    assert last.startswith("wrong.json  not timed: its results differ: result 0: ")


def test_onnxruntime_is_a_road(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("onnxruntime", reason="torch-ir[onnx] is not installed")
    pytest.importorskip("onnxscript", reason="torch-ir[onnx] is not installed")
    assert main(["bench", "net.json", "--against", "onnxruntime", "--repeat", "1"]) == 0
    assert "times as long as net.json" in capsys.readouterr().out


@pytest.mark.slow
def test_inductor_is_a_road(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "net.json", "--against", "inductor", "--repeat", "1"]) == 0
    assert "times as long as net.json" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["net.json", "--against", "egaer"], "unknown back end 'egaer'; did you mean 'eager'?"),
        (
            ["net.json", "--against", "xyz"],
            f"unknown back end 'xyz'; expected one of eager, {', '.join(BACKENDS)}",
        ),
        (["net.json", "--repeat", "0"], "--repeat must be at least 1, not 0"),
        (["net.json", "--threads", "0"], "--threads must be at least 1, not 0"),
        (["none.json"], "cannot read none.json: No such file or directory"),
        (["net.json", "--weights", "none.pt"], "no such file: none.pt"),
        (["net.json", "--input", "z=2x4"], "the graph has no input 'z'; inputs: x"),
    ],
)
def test_mistakes_are_one_line(
    folder: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], told: str
) -> None:
    assert main(["bench", *arguments]) == 1
    assert capsys.readouterr().err == f"torch-ir: error: {told}\n"


def test_a_missing_package_is_named(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before anything is run, with the extra that brings it."""
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    assert main(["bench", "net.json", "--against", "onnxruntime"]) == 1
    told = "the back end onnxruntime needs onnxscript; install it with: pip install 'torch-ir[onnx]'"
    assert capsys.readouterr().err == f"torch-ir: error: {told}\n"


@pytest.mark.slow
def test_a_missing_compiler_is_named(folder: Path) -> None:
    """Torch looks for a compiler once, so this needs a separate process."""
    command = [sys.executable, "-m", "torch_ir", "bench", "net.json", "--against", "inductor"]
    nowhere = {**os.environ, "PATH": "", "CXX": "", "PYTHONPATH": str(Path(__file__).parents[1])}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=nowhere)
    told = "the back end inductor needs a C++ compiler and found none; install g++ or clang++"
    assert (done.returncode, done.stdout, done.stderr) == (1, "", f"torch-ir: error: {told}\n")


def test_random_weights_are_the_same_for_every_file(folder: Path) -> None:
    """If an optimised graph has fewer or reordered weights, each still has the value of the first graph."""
    names = ("a", "b")
    files = []
    for order in (names, names[::-1]):
        x, y, z = (TensorMeta(name, (2, 2), "float32") for name in "xyz")
        a, b = (TensorMeta(name, (2, 2), "float32") for name in names)
        nodes = [
            OpNode("y", "aten.mul.Tensor", [x, a], [y], args=["self", "other"]),
            OpNode("z", "aten.add.Tensor", [y, b], [z], {"alpha": 1}, args=["self", "other"]),
        ]
        weights = {"a": a, "b": b}
        IR(nodes, [x], [z], [weights[name] for name in order]).save(f"{order[0]}.json")
        files.append(f"{order[0]}.json")
    assert main(["bench", *files, "--repeat", "1"]) == 0
