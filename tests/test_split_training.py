"""Training steps in pipeline stages: bit-equal to the unsplit step, also over micro-batches."""

import functools
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from tests.command_line import failure
from tests.proof import module
from tests.trained_models import IDS, LABELS, WORDS, Layer, X, decoder, of_words
from torch_ir import (
    IR,
    IRExecutor,
    PipelineError,
    extract_training,
    load_ir,
    optimizer_state,
    run_pipeline,
    shard,
    split,
    train_pipeline,
    training_report,
    verify_pipeline,
)
from torch_ir.cli import main
from torch_ir.pipeline.pipeline_parts import one_forward_one_backward

BLOCKS = 3


@functools.cache
def captured(rows: int, **options: Any) -> IR:
    """A step of AdamW on this many rows."""
    model = decoder(BLOCKS).to("meta")
    given, words = IDS[:rows].to("meta"), WORDS[:rows].to("meta")
    adamw = torch.optim.AdamW(model.parameters(), lr=0.1)
    return extract_training(model, (given,), targets=(words,), loss=of_words, optimizer=adamw, **options)


def start(ir: IR) -> dict[str, torch.Tensor]:
    return {**decoder(BLOCKS).state_dict(), **optimizer_state(ir)}


@pytest.mark.parametrize("blocks", [pytest.param("inline", marks=pytest.mark.slow), "function"])
@pytest.mark.parametrize("clip", [None, 0.05])
def test_micro_batches_through_stages_are_those_of_one_graph(blocks: str, clip: float | None) -> None:
    """Bit-equal: four micro-batches divide exactly, and each part runs the same operators."""
    one = captured(1, blocks=blocks, clip_norm=clip)
    pipeline = split(one, 3)
    names = [node.name for node in pipeline.nodes if node.name.endswith(("forward", "backward", "update"))]
    phases = [f"stage{stage}_{phase}" for phase in ("forward", "backward", "update") for stage in range(3)]
    assert names == [*phases[:3], *phases[5:2:-1], *phases[6:]]
    batches = list(zip(IDS.split(1), WORDS.split(1), strict=True))
    done = train_pipeline(pipeline, batches, start(one))
    whole = captured(4, micro_batches=4, clip_norm=clip)
    step = IRExecutor(whole, start(whole))
    expected = step(IDS, WORDS)
    assert all(torch.equal(done.outputs[name], value) for name, value in expected.items())
    assert all(torch.equal(done.state[key], value) for key, value in step.state.items())
    assert done.most_saved == (3, 2, 1)


def test_a_loop_of_steps_is_eager_training() -> None:
    ir = captured(2)
    pipeline, state = split(ir, 2), start(ir)
    model = decoder(BLOCKS)
    adamw = torch.optim.AdamW(model.parameters(), lr=0.1)
    for _ in range(3):
        state |= train_pipeline(pipeline, list(zip(IDS.split(2), WORDS.split(2), strict=True)), state).state
        adamw.zero_grad()
        for ids, words in zip(IDS.split(2), WORDS.split(2), strict=True):
            (of_words(model(ids), words) / 2).backward()
        adamw.step()
    assert all(torch.equal(state[key], value) for key, value in model.state_dict().items())


def test_a_pipeline_from_a_file_and_its_entry_points(tmp_path: Path) -> None:
    ir = captured(4, blocks="function")
    split(ir, at=["blocks.1", "blocks.2"]).save(tmp_path / "stages.json")
    pipeline = load_ir(tmp_path / "stages.json")
    for each, original in ((pipeline, ir), (pipeline.functions["backward"], ir.functions["backward"])):
        is_valid, report = verify_pipeline(each, original, start(ir), (IDS, WORDS), rtol=0, atol=0)
        assert is_valid, report
    assert len(pipeline.functions["forward"].nodes) == 3


def test_the_schedule() -> None:
    line = one_forward_one_backward(0, 3, 4)
    assert [f"{phase[0]}{number}" for phase, number in line] == ["f0", "f1", "f2", "b0", "f3", "b1", "b2", "b3"]
    for stage in range(5):
        for batches in (1, 3, 8):
            line = one_forward_one_backward(stage, 5, batches)
            assert sorted(line) == sorted(
                (phase, number) for phase in ("forward", "backward") for number in range(batches)
            )
            held = [sum(1 if phase == "forward" else -1 for phase, _ in line[: at + 1]) for at in range(len(line))]
            assert max(held) == min(5 - stage, batches)


def test_the_memory_of_each_stage() -> None:
    """Weights, moments and gradients of all stages are those of the model; earlier stages hold more micro-batches."""
    ir = captured(1)
    report = training_report(split(ir, 3), 4)
    size = sum(parameter.numel() * 4 for parameter in decoder(BLOCKS).parameters())
    steps = len(list(decoder(BLOCKS).parameters())) * 4
    assert sum(row.weights for row in report.rows) == sum(row.gradients for row in report.rows) == size
    assert sum(row.state for row in report.rows) == 2 * size + steps
    assert [row.in_flight for row in report.rows] == [3, 2, 1]
    for row in report.rows:
        assert row.memory >= row.weights + row.state + row.gradients + row.in_flight * row.saved
        assert row.peak >= row.memory
    assert "4 micro-batches" in str(report)


def test_a_sharded_step_is_split() -> None:
    """Tensor and pipeline parallel: memory by rank, from the graph alone."""
    plan = {**{f"blocks.*.{name}": "colwise" for name in ("q", "k", "v", "up")}, "blocks.*.o": "rowwise"}
    whole = captured(1, blocks="function")
    rank = split(shard(whole, {**plan, "blocks.*.down": "rowwise"}, {"tp": 2}), 3)
    halves, wholes = (training_report(each, 3).rows[1] for each in (rank, split(whole, 3)))
    assert halves.weights < 0.6 * wholes.weights
    assert halves.peak < 0.6 * wholes.peak


def test_what_cannot_be_split() -> None:
    ids, words = torch.zeros(1, 8, dtype=torch.int64), torch.zeros(1, 8, dtype=torch.int64)
    tied = decoder(BLOCKS)
    tied.head.weight = tied.embed.weight
    sgd = torch.optim.SGD(tied.parameters(), lr=0.1)
    ir = extract_training(tied, (ids,), targets=(words,), loss=of_words, optimizer=sgd, strict=False)
    with pytest.raises(
        PipelineError, match=r"'embed.weight' is updated, and read in stages 0, 1, such as a tied weight"
    ):
        split(ir, 2)
    with pytest.raises(PipelineError, match="captured for several micro-batches; capture it for one"):
        split(captured(4, micro_batches=2), 2)
    with pytest.raises(PipelineError, match="give `stages` or `at`"):
        split(captured(1), memory=1e6)
    with pytest.raises(PipelineError, match="train_pipeline runs the pipeline of a training step"):
        run_pipeline(split(captured(1), 2), [(ids, words)], {})
    with pytest.raises(PipelineError, match="not a pipeline of a training step"):
        train_pipeline(captured(1), [(ids, words)], {})
    dropping = nn.Sequential(Layer(), Layer(), nn.Linear(8, 4)).train()
    ir = extract_training(dropping, (X,), targets=(LABELS,), loss=F.cross_entropy, strict=False)
    with pytest.raises(PipelineError, match="draws random numbers"):
        split(ir, 2)


def test_batch_statistics_of_all_micro_batches() -> None:
    """A buffer that forward changes passes from micro-batch to micro-batch."""
    torch.manual_seed(0)

    def build() -> nn.Module:
        torch.manual_seed(0)
        return nn.Sequential(*[nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8)) for _ in range(3)]).train()

    model = build()
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    ir = extract_training(model, (X[:2],), loss=lambda y: y.square().mean(), optimizer=sgd, strict=False)
    read = {key for param in ir.params if param.param for key in param.param.keys}
    weights = {key: value.clone() for key, value in build().state_dict().items() if key in read}
    done = train_pipeline(split(ir, 3), [(x,) for x in X[:4].split(2)], {**weights, **optimizer_state(ir)})
    eager = build()
    for x in X[:4].split(2):
        (eager(x).square().mean() / 2).backward()
    torch.optim.SGD(eager.parameters(), lr=0.1).step()
    assert all(torch.equal(done.state[key], value) for key, value in eager.state_dict().items() if key in done.state)
    assert "0.1.running_mean" in done.state


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(tmp_path / "step.json")
    captured(1).save(path)
    assert main(["split", path, "--stages", "2", "--micro-batches", "4", "-o", str(tmp_path / "stages.json")]) == 0
    assert "4 micro-batches, one forward and one backward in turn" in capsys.readouterr().out
    captured(1).functions["forward"].save(path)
    assert "--micro-batches is for training steps" in failure(
        capsys, "split", path, "--stages", "2", "--micro-batches", "4"
    )


def test_hostile_pipelines() -> None:
    """Parts that are named wrongly, or that wait for each other, end in one sentence."""
    pipeline = split(captured(1), 2)
    pipeline.nodes[0].name = "stage7_forward"
    with pytest.raises(PipelineError, match="the pipeline has no stage"):
        training_report(pipeline, 2)
    with pytest.raises(PipelineError, match="micro_batches must be at least 1"):
        training_report(split(captured(1), 2), 0)


def test_a_model_in_one_module() -> None:
    model = module(lambda self, x: self.b(self.a(x)), a=nn.Linear(8, 8), b=nn.Linear(8, 4))
    ir = extract_training(
        model, (X,), loss=lambda y: y.mean(), optimizer=torch.optim.SGD(model.parameters(), lr=1.0), strict=False
    )
    is_valid, report = verify_pipeline(
        split(ir, 2), ir, {**model.state_dict(), **optimizer_state(ir)}, (X,), rtol=0, atol=0
    )
    assert is_valid, report
