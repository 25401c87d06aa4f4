"""Sharded graphs on real ranks: processes connected by gloo, each with its own shards of the weights."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from tests.sharded_models import TENSOR_PARALLEL, Tower, checkpoint, language_model, sequence_parallel
from torch_ir import (
    IR,
    ExecutionError,
    IRExecutor,
    LocalRanks,
    SerializationError,
    TensorMeta,
    extract_ir,
    load_ir,
    open_weights,
    shard,
    transformers_plan,
    verify_sharded,
)
from torch_ir.ir.graph.placements import parse
from torch_ir.run.ranks import Rank, joined
from torch_ir.run.stored import StoredTensor
from torch_ir.run.stored_piece import StoredPiece

pytestmark = pytest.mark.usefixtures("_forked_python")
IDS = torch.arange(32).reshape(4, 8) * 7 % 32


def tower(mesh: dict[str, int]) -> tuple[Tower, IR]:
    torch.manual_seed(0)
    model = Tower()
    return model, shard(extract_ir(model, (IDS,), strict=False), TENSOR_PARALLEL, mesh)


@pytest.mark.parametrize("count", [2, 4])
@pytest.mark.parametrize(
    "kind",
    [
        "llama",
        "llama with 2 heads of keys",
        "mixtral",
        "mixtral by experts",
        "mixtral by all_to_all experts",
        "llama with 33 tokens",
    ],
)
def test_language_models_on_real_ranks(ranks: LocalRanks, kind: str, count: int, tmp_path: Path) -> None:
    """Two and four ranks, by the plans of transformers; each reads its pieces of a checkpoint in several files."""
    more = {"num_local_experts": 4} if kind.startswith("mixtral") else {}
    more |= {"num_key_value_heads": 2} if "2 heads" in kind else {}
    more |= {"vocab_size": 33} if "33 tokens" in kind else {}
    model = language_model(kind.split()[0], **more)
    ir = extract_ir(model, (), kwargs={"input_ids": IDS}, strict=False).fold_blocks()
    plan = transformers_plan(model.config, ir, ranks=count, expert_parallel="experts" in kind)
    plan |= {"model.layers.*.mlp.experts": "all_to_all"} if "all_to_all" in kind else {}
    plan |= {"model.embed_tokens": "embedding_rowwise"} if "33 tokens" in kind else {}
    sharded = shard(ir, plan, {"tp": count})
    is_valid, report = verify_sharded(
        sharded, model, checkpoint(model, tmp_path), kwargs={"input_ids": IDS}, ranks=ranks
    )
    assert is_valid, str(report)


def test_sequence_parallel_on_real_ranks(ranks: LocalRanks) -> None:
    """Sums are scattered along the sequence, which is not the dimension that a collective cuts."""
    model = Tower()
    sharded = shard(extract_ir(model, (IDS,), strict=False), sequence_parallel(), {"tp": 4})
    is_valid, report = verify_sharded(sharded, model, model.state_dict(), (IDS,), ranks=ranks)
    assert is_valid, str(report)


@pytest.mark.parametrize("plan", [{}, {"blocks.*": "ring"}])
def test_attention_over_a_divided_sequence_on_real_ranks(ranks: LocalRanks, plan: dict[str, str]) -> None:
    """Keys and values are gathered, or sent block by block."""
    torch.manual_seed(0)
    model = Tower()
    sharded = shard(extract_ir(model, (IDS,), strict=False), plan, {"cp": 4}, inputs={"*": "shard(1)"})
    is_valid, report = verify_sharded(sharded, model, model.state_dict(), (IDS,), ranks=ranks)
    assert is_valid, str(report)


def test_two_axes_on_real_ranks(ranks: LocalRanks) -> None:
    """Two halves of the batch, two halves of the weights."""
    model, ir = tower({"tp": 2})
    sharded = shard(ir, {}, {"dp": 2}, inputs={"ids": "shard(0)"}, outputs={"*": "shard(0)"})
    assert sharded.graph_outputs[0].placement == ("replicate", "shard(0)")
    is_valid, report = verify_sharded(sharded, model, model.state_dict(), (IDS,), ranks=ranks)
    assert is_valid, str(report)


def test_a_file_is_all_that_ranks_need(ranks: LocalRanks, tmp_path: Path) -> None:
    """It is loaded and checked without a process group, and saved with the same bytes."""
    model, sharded = tower({"tp": 2})
    sharded.save(tmp_path / "rank.json")
    loaded = load_ir(tmp_path / "rank.json")
    assert loaded.to_json() == sharded.to_json()
    (logits,) = ranks.run(loaded, (IDS,), model.state_dict())
    torch.testing.assert_close(logits, model(IDS))


def test_what_a_rank_cannot_do_is_told_with_its_number() -> None:
    """And ends all ranks: the others would wait for it."""
    model, sharded = tower({"tp": 2})
    weights = {key: value for key, value in model.state_dict().items() if key != "norm.weight"}
    with LocalRanks(2) as started, pytest.raises(ExecutionError, match=r"rank \d: (.|\n)*'norm.weight' is missing"):
        started.run(sharded, (IDS,), weights)


def test_an_interrupted_run_ends_its_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C must not wait for ranks that compute for minutes."""

    def interrupted(waiting: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("torch_ir.sharding.local_ranks.as_completed", interrupted)
    with LocalRanks(2) as started:
        with pytest.raises(KeyboardInterrupt):
            started.ask("time:sleep", {"seconds": 60})
        with pytest.raises(ExecutionError, match="the rank processes have ended"):
            started.ask("time:sleep", {"seconds": 60})


def test_ranks_that_cannot_all_start_leave_none(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[subprocess.Popen[str]] = []
    start = subprocess.Popen

    def at_most_one(*args: Any, **options: Any) -> subprocess.Popen[str]:
        if started:
            raise BlockingIOError("no more processes")
        started.append(start(*args, **options))
        return started[0]

    monkeypatch.setattr(subprocess, "Popen", at_most_one)
    with pytest.raises(BlockingIOError):
        LocalRanks(2)
    assert started[0].poll() is not None


def test_ranks_are_as_many_as_the_mesh_has(ranks: LocalRanks) -> None:
    """Or a multiple of that."""
    model = Tower()
    sharded = shard(extract_ir(model, (IDS,), strict=False), {}, {"tp": 8})
    with pytest.raises(ExecutionError, match="the graph needs 8 ranks, but there are 4"):
        ranks.run(sharded, (IDS,), model.state_dict())


def test_one_process_alone_is_told_what_is_missing() -> None:
    """A sharded graph cannot be run in a single process."""
    _, sharded = tower({"tp": 2})
    with pytest.raises(ExecutionError, match=r"communicates with the other ranks of axis 'tp'; use run_sharded"):
        IRExecutor(sharded)


# -- files ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("old", "new", "rule"),
    [
        ('"group_name": "tp"', '"group_name": "0"', "R10"),
        ('"group_name": "tp"', '"group_name": 7', "R10"),
        ('"group_size": 2', '"group_size": 4', "R7"),
        ('"reduce_op": "sum"', '"reduce_op": "steal"', "R5"),
        ("_c10d_functional.all_reduce.default", "_c10d_functional.broadcast.default", "R9|R10|R11"),
    ],
)
def test_a_file_cannot_speak_with_others_than_the_ranks_of_its_mesh(
    old: str, new: str, rule: str, tmp_path: Path
) -> None:
    """It names axes; process groups cannot be named."""
    _, sharded = tower({"tp": 2})
    text = sharded.to_json()
    assert old in text
    document = json.loads(text.replace(old, new))
    document.pop("digest", None)
    (tmp_path / "rank.json").write_text(json.dumps(document))
    with pytest.raises(SerializationError) as caught:
        load_ir(tmp_path / "rank.json")
    assert re.fullmatch(rule, caught.value.rule), caught.value


# -- pieces of weights ------------------------------------------------------------------------------------------------


def test_pieces_of_a_file_are_those_of_the_tensor(tmp_path: Path) -> None:
    """Along any dimension, of packed parts, and cut twice; put together they are the whole."""
    whole = torch.arange(8 * 12 * 4, dtype=torch.float32).reshape(8, 12, 4)
    save_file({"w": whole}, tmp_path / "w.safetensors")
    stored = open_weights(tmp_path / "w.safetensors")["w"]
    for text in ("shard(0)", "shard(1)", "shard(2)", "shard(1, 3)", "shard(0, 2)"):
        ir = IR([], [], [], mesh={"tp": 2})
        pieces = []
        for number in range(2):
            rank = Rank({"tp": number})
            place = _weight(text)
            of_file, of_tensor = rank.piece(ir, place, stored), rank.piece(ir, place, whole)
            assert isinstance(of_file, StoredPiece)
            assert torch.equal(of_file.load(), of_tensor)
            pieces.append(of_tensor)
        assert torch.equal(joined(pieces, parse(text)), whole)
    twice = Rank({"dp": 1, "tp": 0}).piece(
        IR([], [], [], mesh={"dp": 2, "tp": 2}), _weight("shard(0)", "shard(0)"), stored
    )
    assert torch.equal(twice.load(), whole[4:6])


def test_only_the_bytes_of_a_piece_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rank of eight reads an eighth of the checkpoint."""
    save_file({"w": torch.zeros(64, 64)}, tmp_path / "w.safetensors")
    stored = open_weights(tmp_path / "w.safetensors")["w"]
    read: list[int] = []
    elements = StoredTensor.elements

    def counted(self: StoredTensor, start: int, stop: int) -> torch.Tensor:
        read.append(stop - start)
        return elements(self, start, stop)

    monkeypatch.setattr(StoredTensor, "elements", counted)
    for text in ("shard(0)", "shard(1)"):
        read.clear()
        Rank({"tp": 3}).piece(IR([], [], [], mesh={"tp": 8}), _weight(text), stored).load()
        assert sum(read) == 64 * 64 // 8


def _weight(*placement: str) -> TensorMeta:
    return TensorMeta("w", (), "float32", placement=placement)
