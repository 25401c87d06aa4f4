"""Limits of all that a file requests together: one budget of a command, or of a call of a public function."""

import pickle
import re
import time
from pathlib import Path

import pytest

from tests.adversarial.sums import lifetimes, recurrent, rolls, splits
from tests.command_line import failure
from tests.cpu_time import at_most
from tests.graphs import tensor
from tests.test_shape_worker import CRASHING, _graph
from torch_ir import (
    IR,
    Contract,
    Limits,
    OpNode,
    SerializationError,
    coverage,
    load_ir,
    optimize,
    to_opset,
    to_stablehlo,
    validate_ir,
)
from torch_ir.analysis import plan_memory
from torch_ir.analysis.values.constants import Constants
from torch_ir.cli import main
from torch_ir.cli.verb import load_graph
from torch_ir.cli.verbs import info
from torch_ir.errors import LimitError, UnsupportedOperatorsError
from torch_ir.ir.checks.limits import Budget
from torch_ir.ir.checks.work import current_work, spend_tensors, working

TANH = Contract("one", ["aten.tanh.default"])


def read(ir: IR, limits: Limits = Limits()) -> IR:
    """The graph as it is read from a file."""
    return IR.from_json(ir.to_json(), limits)


def pieces(count: int) -> IR:
    """A valid graph: as many outputs of one node."""
    x = tensor("x", count, 7)
    parts = [tensor(f"y{index}", 1, 7) for index in range(count)]
    return IR([OpNode("y", "aten.split.Tensor", [x], parts, {"split_size": 1, "dim": 0}, args=["self"])], [x], parts)


def test_pieces_of_all_nodes_are_counted(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    splits(100).save(tmp_path / "splits.json")
    with at_most(15):
        assert main(["check", str(tmp_path / "splits.json")]) == 1
    assert "analysing the file takes more than 71936 tensors that are not in the file" in capsys.readouterr().out


def test_a_limit_is_named_and_can_be_raised(tmp_path: Path) -> None:
    pieces(211).save(tmp_path / "pieces.json")
    with pytest.raises(SerializationError, match=r"Limits\(derived_tensors=...\) allows more") as caught:
        load_ir(tmp_path / "pieces.json", Limits(derived_tensors=100))
    assert (type(caught.value), caught.value.rule) == (LimitError, "R2")
    assert load_ir(tmp_path / "pieces.json", Limits(derived_tensors=150)).nodes


def test_each_command_counts_anew_and_says_which_limit(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    pieces(223).save(tmp_path / "pieces.json")
    lower = ("--limit", "derived_tensors=100")
    told = failure(capsys, "plan", str(tmp_path / "pieces.json"), "--devices", "2", "--memory", "1GB", *lower)
    assert "takes more than 164 tensors" in told
    assert main(["check", str(tmp_path / "pieces.json")]) == 0
    capsys.readouterr()
    for text, said in [("derived=3", "did you mean 'derived_tensors'"), ("rank=x", "takes NAME=NUMBER")]:
        assert said in failure(capsys, "info", str(tmp_path / "pieces.json"), "--limit", text)


def test_graphs_of_a_program_have_no_limits() -> None:
    ir = pieces(227)
    with working(ir):
        assert current_work() is None
        spend_tensors(1 << 40)
    assert validate_ir(ir)


def test_copies_have_the_limits_of_the_file() -> None:
    limits = Limits(derived_tensors=7)
    ir = read(pieces(5), limits)
    copies = [ir.clone(), pickle.loads(pickle.dumps(ir)), ir.fold_blocks(), ir.at_level("aten"), optimize(ir)[0]]
    assert {copy.limits for copy in copies} == {limits}
    assert IR.parse(str(pieces(5)), limits).limits == limits


def test_decompositions_of_a_file_end_in_time() -> None:
    """A thousand steps of each of twelve nodes would take minutes; the child process is killed after a second."""
    started = time.monotonic()
    with pytest.raises(LimitError, match="more than 2 s of CPU time"):
        coverage(read(recurrent(12, 1000), Limits(analysis_seconds=1)), TANH)
    assert time.monotonic() - started < 100


def test_nodes_with_wrong_results_are_not_decomposed() -> None:
    """Recording the pieces of sixty tensors would take minutes."""
    with at_most(15):
        report = str(coverage(read(splits(3)), TANH))
    assert "its declared results are not those of torch's shape rule" in report


def test_decompositions_of_a_file_are_those_of_the_graph() -> None:
    ir = recurrent(2, 3)
    assert str(coverage(read(ir), TANH)) == str(coverage(ir, TANH))
    ours, theirs = (to_opset(graph, "core-aten")[0] for graph in (ir, read(ir)))
    assert theirs.to_json() == ours.to_json()


def test_a_decomposition_that_crashes_ends_its_own_process() -> None:
    ir = read(_graph(*CRASHING[0]))
    report = coverage(ir, TANH)
    assert [gap.op_type for gap in report.gaps] == [ir.nodes[0].op_type]


def test_passes_over_a_constant_are_counted() -> None:
    """One node moves a megabyte sixty times, which counts 120 MB; with more shifts, it stays in the graph."""
    known = Constants(rolls(4, 60), Budget(300 << 20))
    values = [known.value(node.output) for node in known._shapes._ir.nodes]
    assert [value is not None for value in values] == [True, True, True, False, False]
    ir = rolls(1, 65)
    assert Constants(ir).value(ir.nodes[1].output) is None


def test_long_lives_in_a_memory_plan_take_seconds() -> None:
    with at_most(15):
        assert plan_memory(lifetimes(450)).places


def test_a_command_that_takes_too_long_ends(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Also in a loop that no limit counts, and in code that continues after every error."""
    pieces(3).save(tmp_path / "pieces.json")

    def endless(arguments: object) -> int:
        load_graph(str(tmp_path / "pieces.json"))
        while True:
            try:
                sum(range(100_000))
            except Exception:
                continue

    monkeypatch.setattr(info, "run", endless)
    told = failure(capsys, "info", str(tmp_path / "pieces.json"), "--limit", "analysis_seconds=1")
    assert "analysing the file takes more than 1 s of CPU time" in told


def pooled(op_type: str, size: int, wanted: int, **attrs: object) -> IR:
    x, y = tensor("x", 1, 1, size), tensor("y", 1, 1, wanted)
    return IR([OpNode("y", op_type, [x], [y], attrs, args=["self"])], [x], [y])


@pytest.mark.parametrize(
    ("op_type", "size", "wanted", "attrs"),
    [
        ("aten.adaptive_avg_pool1d.default", 1 << 20, (1 << 20) - 1, {"output_size": [(1 << 20) - 1]}),
        ("aten.adaptive_avg_pool1d.default", 1 << 40, 1 << 39, {"output_size": [1 << 39]}),
        ("aten.avg_pool1d.default", 1 << 40, 1 << 40, {"kernel_size": [1]}),
    ],
)
def test_places_of_a_pooling_are_not_listed(op_type: str, size: int, wanted: int, attrs: dict[str, object]) -> None:
    """A line for each would take gigabytes."""
    with at_most(5), pytest.raises(UnsupportedOperatorsError, match=f"it pools into {wanted} places, more than "):
        to_stablehlo(pooled(op_type, size, wanted, **attrs))


@pytest.mark.parametrize(
    ("op_type", "attrs"),
    [
        ("aten.add.Scalar", {"alpha": 1}),
        ("aten.avg_pool1d.default", {"kernel_size": [2], "padding": [0, 0, 0]}),
        ("aten.roll.default", {"shifts": [1], "dims": [0, 1]}),
        ("aten.scatter_reduce.two", {"dim": 0, "reduce": "left"}),
    ],
)
def test_invalid_arguments_are_not_written(
    op_type: str, attrs: dict[str, object], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Of a graph that a program made; one of a file is checked first."""
    with pytest.raises(UnsupportedOperatorsError, match="its arguments or results are invalid: "):
        to_stablehlo(pooled(op_type, 4, 3, **attrs))
    pooled(op_type, 4, 3, **attrs).save(tmp_path / "invalid.json")
    told = failure(capsys, "convert", str(tmp_path / "invalid.json"), "-o", str(tmp_path / "x.stablehlo.mlir"))
    assert re.search(r"^\$\.nodes\[0\].* \[rule R1[12]\]$", told)


def test_results_that_nothing_reads_may_differ() -> None:
    """Torch's shape rules give other sizes of the statistics of an idle batch norm than its decomposition."""
    names = ("input", "weight", "bias", "running_mean", "running_var")
    given = {name: tensor(name, *((2, 8, 6, 6) if name == "input" else (8,))) for name in names}
    attrs = {"training": False, "momentum": 0.1, "eps": 1e-5, "cudnn_enabled": True}
    node = OpNode("y", "aten.batch_norm.default", given.values(), [tensor("y", 2, 8, 6, 6)], attrs, args=names)
    ir = IR([node], given.values(), node.outputs)
    assert to_stablehlo(read(ir)).text == to_stablehlo(ir).text
