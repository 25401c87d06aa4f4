"""Pipelines on real ranks: every stage in its own process, connected by gloo."""

from __future__ import annotations

import json
import re
import signal
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from tests.command_line import failure
from tests.sharded_models import TENSOR_PARALLEL, Tower, checkpoint, language_model
from torch_ir import (
    IR,
    ExecutionError,
    LocalRanks,
    extract_ir,
    load_ir,
    run_pipeline,
    shard,
    split,
    stage_of,
    verify_pipeline,
)
from torch_ir.cli import main
from torch_ir.pipeline.in_turn import left_in_turn

pytestmark = pytest.mark.usefixtures("_seeded", "_forked_python")
IDS = torch.arange(32).reshape(4, 8) * 7 % 32


@pytest.fixture
def pair(running_ranks: Callable[[int], LocalRanks]) -> LocalRanks:
    return running_ranks(2)


def captured(model: nn.Module, ids: torch.Tensor = IDS) -> IR:
    return extract_ir(model, (ids,), strict=False)


@pytest.mark.parametrize("kind", ["llama", "mixtral"])
def test_language_models_in_four_stages(ranks: LocalRanks, kind: str, tmp_path: Path) -> None:
    """Each stage reads its own weights of a file; outputs are those of transformers' model."""
    model = language_model(kind, num_hidden_layers=4)
    ir = extract_ir(model, (), kwargs={"input_ids": IDS}, strict=False).fold_blocks()
    pipeline = split(ir, 4)
    is_valid, report = verify_pipeline(
        pipeline, model, checkpoint(model, tmp_path), kwargs={"input_ids": IDS}, ranks=ranks
    )
    assert is_valid, report
    assert report.notes == ["4 stages, each in its own processes"]


def test_values_of_every_kind_are_sent(pair: LocalRanks) -> None:
    """Booleans, half precision, whole and conjugate numbers, nothing at all, and two of one stage in their order."""

    class Kinds(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList([_Makes(), _Uses()])

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layers[1](*self.layers[0](x))

    model = Kinds().eval()
    x = torch.randn(3, 4)
    pipeline = split(captured(model, x), at=["layers.1"])
    sent = stage_of(pipeline, 1).graph_inputs
    assert {tensor.dtype for tensor in sent} == {"bool", "bfloat16", "int32", "complex64", "float32"}
    assert verify_pipeline(pipeline, model, {}, (x,), ranks=pair)[0]


class _Makes(nn.Module):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x > 0, x.bfloat16(), (x * 8).int(), torch.complex(x, -x).conj(), x[:, :0] + 1, x.t() + 1


class _Uses(nn.Module):
    def forward(self, mask, half, whole, pair, empty, turned) -> torch.Tensor:  # six tensors
        return torch.where(mask, half.float(), whole) + pair.abs() + pair.imag + empty.sum() + turned.t()


def test_sizes_are_those_of_each_batch(pair: LocalRanks) -> None:
    """Batches of different sizes follow each other, in order."""
    model = Tower()
    dims = ({0: torch.export.Dim("batch", min=2, max=64)},)
    pipeline = split(extract_ir(model, (IDS,), dynamic_shapes=dims, strict=False), 2)
    batches = [(torch.randint(0, 32, (count, 8)),) for count in (2, 5, 3, 7)]
    found = run_pipeline(pipeline, batches, model.state_dict(), ranks=pair)
    for (ids,), (logits,) in zip(batches, found, strict=True):
        torch.testing.assert_close(logits, model(ids))


def test_a_changing_buffer_lives_on_in_its_stage(pair: LocalRanks) -> None:
    """The second batch sees the state of the first."""

    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(2))
            self.register_buffer("seen", torch.zeros(()))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.layers[0](x) + self.seen
            self.seen.add_(1)
            return self.layers[1](y)

    model = Counting().eval().requires_grad_(False)
    x = torch.ones(2, 4)
    pipeline = split(captured(model, x), 2)
    weights = {key: value.clone() for key, value in model.state_dict().items()}
    found = run_pipeline(pipeline, [(x,), (x,), (x,)], weights, ranks=pair)
    for (result,) in found:
        torch.testing.assert_close(result, model(x))


def test_a_sharded_graph_in_stages(ranks: LocalRanks) -> None:
    """Two stages of two ranks each: pieces go to the same rank of the next stage."""
    model = Tower()
    pipeline = split(shard(captured(model), TENSOR_PARALLEL, {"tp": 2}), 2)
    is_valid, report = verify_pipeline(pipeline, model, model.state_dict(), (IDS,), ranks=ranks)
    assert is_valid, report
    with pytest.raises(Exception, match="run in one process per rank; use run_pipeline"):
        left_in_turn(pipeline, [IDS], model.state_dict())


def test_an_output_that_is_an_input_comes_back_as_it_was(pair: LocalRanks) -> None:
    """And one output twice."""

    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(2))

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
            first = self.layers[0](x)
            last = self.layers[1](first)
            return last, x, first, last

    model, x = Both().eval().requires_grad_(False), torch.randn(2, 4)
    pipeline = split(captured(model, x), 2)
    ((last, same, first, again),) = run_pipeline(pipeline, [(x,)], model.state_dict(), ranks=pair)
    assert torch.equal(same, x)
    assert torch.equal(last, again)
    torch.testing.assert_close((last, first), (model(x)[0], model(x)[2]))


def test_what_goes_wrong_in_a_stage_is_told(ranks: LocalRanks) -> None:
    """A weight that is missing, with the number of the rank; too many processes."""
    model = Tower()
    pipeline = split(captured(model), 2)
    with pytest.raises(ExecutionError, match="the pipeline needs 2 ranks, but there are 4"):
        run_pipeline(pipeline, [(IDS,)], model.state_dict(), ranks=ranks)
    weights = {key: value for key, value in model.state_dict().items() if key != "head.weight"}
    with LocalRanks(2) as own, pytest.raises(ExecutionError, match=r"(?s)rank 1: .*head\.weight"):
        run_pipeline(pipeline, [(IDS,)], weights, ranks=own)


def test_wrong_inputs_are_told_before_a_process_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    """How many, their shapes and dtypes."""
    pipeline = split(captured(Tower()), 2)
    monkeypatch.setattr("subprocess.Popen", None)
    for batch, told in (
        ((), "expected 1 item, got 0"),
        ((IDS[:2],), r"input 'ids' has shape \[2, 8\], the graph takes \[4, 8\]"),
        ((IDS.float(),), "input 'ids' is float32, the graph takes int64"),
    ):
        with pytest.raises(ExecutionError, match=told):
            run_pipeline(pipeline, [(IDS,), batch], {})


def test_ranks_that_are_no_more() -> None:
    """A killed rank is named at once; then all end. Unused ranks end at once."""
    model = Tower()
    pipeline = split(captured(model), 2)
    with pytest.raises(ExecutionError, match="at least 1 rank, not 0"):
        LocalRanks(0)
    unused = LocalRanks(2)
    unused.close()
    assert [server.process.returncode for server in unused._servers] == [-signal.SIGKILL] * 2
    with LocalRanks(2) as ranks:
        run_pipeline(pipeline, [(IDS,)], model.state_dict(), ranks=ranks)
        killer = threading.Timer(0.5, ranks._servers[1].process.kill)
        killer.start()
        with pytest.raises(ExecutionError, match=r"rank [01]: "):
            run_pipeline(pipeline, [(IDS,)] * 20_000, model.state_dict(), ranks=ranks)
        with pytest.raises(ExecutionError, match=r"the rank processes have ended, .*; start new ones"):
            run_pipeline(pipeline, [(IDS,)], model.state_dict(), ranks=ranks)


def test_ranks_that_take_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """The limit is named, and not a rank that it ended."""
    monkeypatch.undo()  # a forked process outlives the program that is killed in its place
    model = Tower()
    with LocalRanks(2, seconds=0.01) as ranks, pytest.raises(ExecutionError, match=r"did not finish within 0\.01 s"):
        run_pipeline(split(captured(model), 2), [(IDS,)], model.state_dict(), ranks=ranks)


def test_the_commands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Split a file, write its stages, and run it in one process and in several: the same."""
    model = Tower()
    file, pipeline, parts = tmp_path / "tower.json", tmp_path / "pipeline.json", tmp_path / "parts"
    captured(model).save(file)
    save_file(model.state_dict(), tmp_path / "tower.safetensors")
    assert main(["split", str(file), "--stages", "2", "-o", str(pipeline), "--parts", str(parts), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert [stage["first"] for stage in told["stages"]] == ["embed", "blocks.1"]
    for number in range(2):
        part = load_ir(parts / f"stage{number}.json")
        assert part.to_json() == stage_of(load_ir(pipeline), number).to_json()
    lines = []
    for options in ([], ["--processes"]):
        assert main(["run", str(pipeline), "-w", str(tmp_path / "tower.safetensors"), *options]) == 0
        lines.append(re.sub(r"(\d+\.\d{4})\d*", r"\1", capsys.readouterr().out))
    assert lines[0] == lines[1]


def test_mistakes_on_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One line each, and nothing is written."""
    file = tmp_path / "tower.json"
    captured(Tower()).save(file)
    told = failure(capsys, "split", str(file), "--memory", "lots", "-o", str(tmp_path / "out.json"))
    assert told == "'lots' is not a memory size; write 512MB, 4GB or a number of bytes"
    told = failure(capsys, "split", str(file), "--stages", "9", "-o", str(tmp_path / "out.json"))
    assert told.startswith("the graph has 5 layers, too few for 9 stages; ")
    told = failure(capsys, "split", str(file), "--stages", "2", "--parts", str(file))
    assert told == f"{file} is a file; --parts names a folder"
    told = failure(capsys, "run", str(file), "-w", "random", "--processes")
    assert told == f"--processes needs a pipeline; make one with: torch-ir split {file}"
    assert not (tmp_path / "out.json").exists()
