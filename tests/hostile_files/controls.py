"""Valid files that must load; otherwise the other cases would show nothing."""

import json
from pathlib import Path

import torch

import torch_ir
from tests.damage import planning_files
from tests.hostile_files import gguf
from tests.hostile_files.case import Family, Make
from tests.hostile_files.documents import document, graph, one_node, replaced, written

FAMILY = Family("valid files")


def _saved(folder: Path) -> Path:
    graph().save(folder / "model.json")
    return folder / "model.json"


def _with_side_file(folder: Path) -> Path:
    graph().save(folder / "model.json", inline_limit=0)
    return folder / "model.json"


def _gzip(folder: Path) -> Path:
    graph().save(folder / "model.json.gz", inline_limit=0)
    return folder / "model.json.gz"


def _protobuf(folder: Path) -> Path:
    torch_ir.save_protobuf(graph(), folder / "model.pb")
    return folder / "model.pb"


def _weights(folder: Path) -> Path:
    torch.save({"fc.weight": torch.zeros(2, 3)}, folder / "weights.pt")
    return folder / "weights.pt"


def _text(name: str, text: str) -> Make:
    def make(folder: Path) -> Path:
        (folder / name).write_text(text)
        return folder / name

    return make


def _contract(folder: Path) -> Path:
    (folder / "npu.toml").write_text('ops = ["aten.relu"]\n')
    return folder / "npu.toml"


FAMILY.loaded("as it is written", _saved)
FAMILY.loaded("with a side file", _with_side_file)
FAMILY.loaded("gzip with a side file", _gzip)
FAMILY.loaded("in one line, without digest", written(document()))
FAMILY.loaded("with escapes in its text", replaced('"Net"', '"N\\u0065t"'))
FAMILY.loaded("one operator", one_node("aten.relu.default", 2, 3))
FAMILY.loaded("protobuf", _protobuf)
FAMILY.loaded("weights", _weights, opens="weights")
FAMILY.loaded("contract", _contract, opens="contract")
FAMILY.loaded("GGUF without rows", gguf.NO_ROWS, opens="weights")
FAMILY.loaded("recipe", _text("r.toml", "[[layers]]\nmatch = '*'\nscheme = 'int8'\n"), opens="recipe")
FAMILY.loaded("ranges", _text("r.json", '{"fc": [-1, 1]}'), opens="ranges")
FAMILY.loaded("plan", _text("p.json", '{"fc": "colwise"}'), opens="plan")
FAMILY.loaded("input", _weights, opens="input")
FAMILY.loaded("device", _text("d.json", json.dumps(planning_files.DEVICE)), opens="device")
FAMILY.loaded("mesh plan", _text("p.json", json.dumps(planning_files.PLAN)), opens="mesh plan")
FAMILY.loaded("adapter", planning_files.write_adapter, opens="adapter")
