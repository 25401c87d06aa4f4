"""`--json`: one strict JSON value on stdout and nothing else, with the keys that the reference lists."""

import json
import re

import pytest
import torch

import torch_ir
from catalogue.mlp import SimpleMLP
from tests.command_line import ROOT
from torch_ir.cli import main

MODEL, TARGET, BROKEN = "catalogue.mlp:SimpleMLP", "mynpu.py:npu", "broken.json"
TARGET_FILE = """\
from torch_ir import Target

npu = Target("npu")


@npu.lowers("aten.linear.default")
def gemm(node):
    return {}
"""
# the arguments of each command, and its status
CASES = [
    ("extract", [MODEL, "--input", "1x4", "-o", "new.json"], 0),
    ("info", ["net.json"], 0),
    ("ops GRAPH", ["net.json", "--check"], 0),
    ("ops OPERATOR", ["aten.relu"], 0),
    ("cost", ["net.json"], 0),
    ("memory", ["net.json"], 0),
    ("diff", ["net.json", "net.json"], 0),
    ("diff", ["net.json", "other.json"], 3),
    ("check", ["net.json"], 0),
    ("check", [BROKEN], 1),
    ("optimize", ["net.json", "--level", "full", "--verify"], 0),
    ("passes", ["casts"], 0),
    ("run", ["net.json", "--weights", "random"], 0),
    ("verify", ["net.json", MODEL], 0),
    ("weights", ["check", "net.json", "weights.pt"], 0),
    ("golden", ["net.json", MODEL, "-o", "pack"], 0),
    ("bench", ["net.json", "--repeat", "1"], 0),
    ("convert", ["net.json", "-o", "net.pb"], 0),
    ("lower", ["net.json", "--target", TARGET, "--log"], 0),
    ("lower", ["net.json", "--target", TARGET, "--fail-missing"], 1),
    ("coverage", ["net.json", "--target", "npu.toml", "--no-decompose"], 0),
    ("plan", ["net.json", "--devices", "2", "--memory", "1GB"], 0),
    ("doctor", ["python"], 0),
    ("calibrate", ["--minutes", "0.001", "--no-compiler", "-o", "device.json"], 0),
]


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("json")
    model = SimpleMLP().eval()
    torch_ir.extract_ir(model, (torch.ones(1, 4),), strict=False).save(folder / "net.json")
    torch_ir.extract_ir(model, (torch.ones(2, 4),), strict=False).save(folder / "other.json")
    torch.save(model.state_dict(), folder / "weights.pt")
    (folder / BROKEN).write_text("{")
    (folder / "mynpu.py").write_text(TARGET_FILE)
    (folder / "npu.toml").write_text('ops = ["aten.linear"]\n')
    return folder


@pytest.mark.parametrize(("name", "arguments", "status"), CASES, ids=lambda value: str(value)[:40])
def test_json_is_strict_and_alone(name, arguments, status, files, monkeypatch, capsys):
    monkeypatch.chdir(files)
    assert main([name.split()[0], *arguments, "--json"]) == status
    record = json.loads(capsys.readouterr().out, parse_constant=refused)
    page = (ROOT / "docs" / "command-line.md").read_text()
    rows = {line.split("|")[1].strip(): line for line in page.splitlines() if line.startswith("| `")}
    row = next(row for names, row in rows.items() if names.startswith(f"`{name}`"))
    documented = set(re.findall(r"`(\w+)`", row + rows["`info`"] * ("those of `info`" in row)))
    first = record[0] if isinstance(record, list) else record
    assert "the fields of" in row or set(first) <= documented


def refused(word: str) -> None:
    raise AssertionError(f"{word} is not JSON")
