"""`torch-ir plan`, and plan files in `torch-ir shard` and `torch-ir split`."""

import json
from typing import Any

import pytest
import torch

from tests.sharded_models import Tower
from torch_ir import ParallelPlan, PlanError, extract_ir, load_ir, load_plan, verify_sharded
from torch_ir.cli import main

IDS = torch.arange(32).reshape(4, 8) * 7 % 32
FORMAT = {"format": "torch_ir.plan", "version": 1}
AXIS = {"axis": "tp", "ranks": 2, "rows": {"blocks.*.up": "colwise"}}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def model(folder):
    torch.manual_seed(0)
    model = Tower()
    extract_ir(model, (IDS,), strict=False).save(folder / "model.json")
    return model


def test_plan_shard_verify(model, folder, capsys) -> None:
    """A plan file is all that `shard` needs; the graph computes what the model computes."""
    hardware = ["--device", "peak=1TFLOPs,bw=0.1GB/s", "--link", "1GB/s,1us", "--between", "1GB/s,1us"]
    assert main(["plan", "model.json", "--devices", "4", "--memory", "15kB", *hardware, "-o", "plan.json"]) == 0
    assert "time" in capsys.readouterr().out
    plan = load_plan("plan.json")
    assert plan.axes
    assert main(["shard", "model.json", "--plan", "plan.json", "-o", "rank.json", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["mesh"] == plan.mesh
    is_valid, report = verify_sharded(load_ir("rank.json"), model, model.state_dict(), (IDS,))
    assert is_valid, str(report)


def test_plan_split(model, folder, capsys) -> None:
    """Where ranks cannot share a layer, because links are slow, the plan has stages that `split` takes."""
    hardware = ["--link", "1MB/s,1us", "--between", "1MB/s,1us", "--device", "peak=1TFLOPs,bw=100GB/s"]
    (folder / "plan.json").write_text(json.dumps({**FORMAT, "axes": [], "stages": ["blocks.1"]}))
    assert main(["split", "model.json", "--plan", "plan.json", "-o", "pipeline.json"]) == 0
    assert len(load_ir("pipeline.json").nodes) == 2
    assert main(["plan", "model.json", "--devices", "2", "--memory", "38kB", *hardware, "--json"]) == 0
    out = capsys.readouterr().out
    assert json.loads(out[out.index("{") :])["best"]["stages"] == ["blocks.1"]
    assert main(["shard", "model.json", "--plan", "plan.json"]) == 1
    assert "plan.json has pipeline stages only" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--devices", "2", "--memory", "1kB"], "no plan fits 2 devices of 1.02 kB"),
        (["--devices", "0", "--memory", "1GB"], "devices must be from 1"),
        (["--devices", "2", "--memory", "much"], "'much' is not a memory size"),
        (["--devices", "2", "--memory", "1GB", "--link", "fast"], "invalid link 'fast'; write its bandwidth"),
        (["--devices", "2", "--memory", "1GB", "--link", "0GB/s,1us"], "the bandwidth of a link must be more than 0"),
        (["--devices", "2", "--memory", "1GB", "--objective", "x"], "unknown objective 'x'"),
        (["--devices", "2", "--memory", "1GB", "--dim", "batch=2"], "unknown size 'batch'"),
    ],
)
def test_bad_requests(model, folder, capsys, arguments, message) -> None:
    assert main(["plan", "model.json", *arguments, "-o", "plan.json"]) == 1
    assert message in capsys.readouterr().err
    assert not (folder / "plan.json").exists()


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ({"format": "torch_ir.plan"}, "'version' is missing"),
        ({**FORMAT, "version": 2, "axes": []}, "version 2 is not supported, only 1"),
        ({**FORMAT, "axes": {}}, "expected a list"),
        ({**FORMAT, "axes": [AXIS] * 5}, "5 axes are more than 4"),
        ({**FORMAT, "axes": [{**AXIS, "ranks": 0}]}, "expected a number from 1"),
        ({**FORMAT, "axes": [{**AXIS, "ranks": True}]}, "expected a whole number"),
        ({**FORMAT, "axes": [{**AXIS, "rows": {"up": 3}}]}, "expected an object, found 3"),
        ({**FORMAT, "axes": [{**AXIS, "rows": {"up": {"matrix": 1}}}]}, "expected a string, found 1"),
        ({**FORMAT, "axes": [{**AXIS, "inputs": []}]}, "expected an object"),
        ({**FORMAT, "axes": [{**AXIS, "row": {}}]}, "unknown key 'row'; did you mean 'rows'?"),
        ({**FORMAT, "axes": [], "stages": [1]}, "expected a string, found 1"),
        ({**FORMAT, "axes": [], "stages": ["x"] * 20_000}, "20000 stages are more than 10000"),
        ({**FORMAT, "axes": [], "estimate": {"seconds": -1}}, "expected a number, found -1"),
        ({**FORMAT, "axes": [], "steps": []}, "unknown key 'steps'"),
    ],
)
def test_bad_plan_files(model, folder, capsys, document: dict[str, Any], message: str) -> None:
    """One sentence that names the file and the place."""
    (folder / "plan.json").write_text(json.dumps(document))
    with pytest.raises(PlanError, match=r"plan.json is not a plan: "):
        load_plan("plan.json")
    for verb in ("shard", "split"):
        assert main([verb, "model.json", "--plan", "plan.json"]) == 1
        assert message in capsys.readouterr().err


def test_rows_of_a_plan_file_are_checked_by_shard(model, folder, capsys) -> None:
    for rows, message in (
        ({"nowhere": "colwise"}, "'nowhere' matches no module"),
        ({"head": "x"}, "unknown style 'x'"),
    ):
        (folder / "plan.json").write_text(json.dumps({**FORMAT, "axes": [{**AXIS, "rows": rows}]}))
        assert main(["shard", "model.json", "--plan", "plan.json"]) == 1
        assert message in capsys.readouterr().err
    assert main(["shard", "model.json", "--plan", "plan.json", "--mesh", "tp=2"]) == 1
    assert "has its own mesh" in capsys.readouterr().err


def test_a_plan_is_what_was_saved(folder) -> None:
    plan = ParallelPlan("Tower", stages=("blocks.1",))
    plan.save("plan.json")
    assert load_plan("plan.json") == plan
