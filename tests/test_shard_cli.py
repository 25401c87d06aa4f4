"""`torch-ir shard`, and `torch-ir run` of its result: one-line errors, one process per rank."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from transformers import LlamaConfig

from torch_ir import extract_ir, load_ir
from torch_ir.cli.dispatch import main
from torch_ir.llm import extract_llm

PLAN = {"0": "colwise", "2": "rowwise"}


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to be in, with a graph and a plan."""
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8)).eval()
    extract_ir(model, (torch.ones(3, 8),), strict=False).save(tmp_path / "model.json")
    (tmp_path / "plan.json").write_text(json.dumps(PLAN))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_graph_is_divided_and_run(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Ranks with shards of the same random weights return the results of one process with all of them."""
    assert main(["shard", "model.json", "--plan", "plan.json", "--mesh", "tp=2", "-o", "rank.json"]) == 0
    assert capsys.readouterr().out == (
        "tp = 2: one graph of 7 nodes for all ranks\n"
        "each rank stores 144 of 280 parameters\n"
        "each rank sends 96 B in 1 all_reduce call\n"
    )
    assert main(["run", "rank.json", "--weights", "random", "-o", "ranks.safetensors"]) == 0
    assert main(["run", "model.json", "--weights", "random", "-o", "one.safetensors"]) == 0
    (ranks,), (one,) = (load_file(f"{name}.safetensors").values() for name in ("ranks", "one"))
    torch.testing.assert_close(ranks, one)


def test_the_facts_as_json(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["shard", "model.json", "--mesh", "dp=3", "--place-input", "input=shard(0)", "--json"]) == 0
    told: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert told["mesh"] == {"dp": 3}
    assert told["collectives"] == {"_c10d_functional.all_gather_into_tensor.default": {"count": 1, "sent": 2 * 8 * 4}}


def test_prefill_and_decode_are_divided_together(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One file in, one out; replicated heads and the traffic of each entry point are reported."""
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "vocab_size": 100}
    config = LlamaConfig(num_attention_heads=4, num_key_value_heads=2, **sizes)
    extract_llm(config, batch=1, prompt=8).save("llm.json")
    assert main(["shard", "llm.json", "--plan", "hf:llama", "--mesh", "tp=4", "-o", "rank.json"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[2:4] == [
        f"replicated, because it has too few heads: model.layers.*.self_attn.{name}_proj" for name in "kv"
    ]
    assert lines[4:6] == [
        "each rank sends 6.14 kB in 4 all_reduce calls",
        "each rank sends 300 B in 1 all_gather_into_tensor call",
    ]
    assert lines[7:] == [
        "decode: each rank sends 768 B in 4 all_reduce calls",
        *(f"decode: {line}" for line in lines[5:6]),
    ]
    decode = load_ir("rank.json").functions["decode"]
    assert decode.mesh == {"tp": 4}
    assert main(["shard", "llm.json", "--plan", "hf:llama", "--mesh", "tp=2", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["whole"] == []
    assert told["entries"]["decode"]["collectives"]["_c10d_functional.all_reduce.default"]["count"] == 4


RANKS = ("0", "-1", "x", "", "2=3", "1.5", "٢", "9999999999")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--mesh", "tp"], "'tp' is not a mesh; write it as tp=8"),
        (["--mesh", "=2"], "'=2' is not a mesh; write it as tp=8"),
        (["--mesh", ""], "'' is not a mesh; write it as tp=8"),
        *((["--mesh", f"tp={count}"], f"must be an integer from 1 to 999,999,999, not '{count}'") for count in RANKS),
        (["--mesh", "tp=2,tp=2"], "--mesh takes one axis, not 2: tp=2, tp=2; shard the result along the next axis"),
        (["--mesh", "tp=2", "--mesh", "dp=2"], "--mesh takes one axis, not 2: tp=2, dp=2"),
        (["--mesh", "a b=2", "--place-input", "input=shard(0)"], "invalid name 'a b' of a mesh axis"),
        ([], "--mesh is missing; write it as --mesh tp=8"),
        (["--mesh", "tp=2", "--place-input", "input=shard(0)"], "input 'input': dimension 0 of 'input', [3, 8]"),
        (["--mesh", "tp=2", "--plan", "list.json"], "list.json is not a plan"),
        (["--mesh", "tp=2", "--plan", "none.json"], "none.json"),
        (["--mesh", "tp=2", "--plan", "hf:bert"], "BertConfig has no plan for tensor parallelism"),
        (["--mesh", "tp=2", "--plan", "plan.json", "--experts"], "--experts applies to the plan of a configuration"),
        (["--mesh", "tp=2", "--place-input", "input"], "'input' is not a placement; write it as 'x=shard(0)'"),
    ],
)
def test_a_mistake_is_one_line(
    files: Path, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (files / "list.json").write_text("[]")
    assert main(["shard", "model.json", *arguments, "-o", "rank.json"]) == 1
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert not (files / "rank.json").exists()


def test_ranks_are_processes_of_the_executor(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Back ends, levels and isolation are for graphs of one process."""
    assert main(["shard", "model.json", "--plan", "plan.json", "--mesh", "tp=2", "-o", "rank.json"]) == 0
    assert main(["run", "rank.json", "--weights", "random", "--isolated"]) == 1
    assert "a sharded graph runs with the back end torch only" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["--place-input", "inptu=shard(0)"],
            "the graph has no input 'inptu'; did you",
        ),
        (
            ["--place-input", "ids_*=shard(0)"],
            "the graph has no input 'ids_*'; inputs:",
        ),
        (["--place-output", "logits=shard(0)"], "the graph has no output 'logits'; outputs: "),
    ],
)
def test_a_placement_of_nothing_is_refused(
    files: Path, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The graph was left whole before, and the plan of another model seemed to fit."""
    assert main(["shard", "model.json", "--mesh", "dp=2", *arguments, "-o", "rank.json"]) == 1
    assert message in capsys.readouterr().err
    assert not (files / "rank.json").exists()
