"""Names that are paths, and paths that are not regular files."""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from tests.hostile_files.case import Family, Make
from tests.hostile_files.documents import changed, document, graph, written

FAMILY = Family("paths")
_SIDE = r"\$\.constants\.steps(\.file|\.offset)?"


def _beside(name: str) -> Make:
    """A constant in a side file of that name."""
    record = {"shape": [8], "dtype": "float32", "file": name, "offset": 0, "digest": "sha256:" + "0" * 64}
    return changed("constants.steps", record)


for name, file in [
    ("side file in another folder", "../canary/secret.txt"),
    ("side file of the machine", "/etc/passwd"),
    ("side file up and down", "../canary/model.json.constants-000000000000.safetensors"),
    ("side file below", "sub/model.json.constants-000000000000.safetensors"),
    ("side file with a NUL", "model.json\0.constants-000000000000.safetensors"),
    ("side file with a newline", "model.json.constants-000000000000.safetensors\n"),
    ("side file with a backslash", "..\\model.json.constants-000000000000.safetensors"),
    ("side file of a drive", "C:model.json.constants-000000000000.safetensors"),
    ("side file as a URL", "http://example.org/model.json.constants-000000000000.safetensors"),
    ("side file called ..", ".."),
    ("side file with an empty name", ""),
    ("side file that is not there", "model.json.constants-000000000000.safetensors"),
]:
    FAMILY.refused(name, _beside(file), "R16", _SIDE)

_BESIDE = "model.json.constants-000000000000.safetensors"


def _in_place(put: Any) -> Make:
    """A side file with a valid name, which `put` creates."""

    def make(folder: Path) -> Path:
        put(folder / _BESIDE)
        return _beside(_BESIDE)(folder)

    return make


FAMILY.refused("side file as a link", _in_place(lambda side: side.symlink_to("../canary/secret.txt")), "R16", _SIDE)
FAMILY.refused("side file as a pipe", _in_place(os.mkfifo), "R16", _SIDE)
FAMILY.refused("side file as a folder", _in_place(os.mkdir), "R16", _SIDE)
FAMILY.refused("side file as a device", _in_place(lambda side: side.symlink_to("/dev/zero")), "R16", _SIDE)
FAMILY.refused("side file cut short", _in_place(lambda side: side.write_bytes(b"12345678")), "R16", _SIDE)


def _offset(value: int) -> Make:
    def make(folder: Path) -> Path:
        (folder / _BESIDE).write_bytes(bytes(64))
        found = document()
        found["constants"]["steps"] = {
            "shape": [8], "dtype": "float32", "file": _BESIDE, "offset": value, "digest": "sha256:" + "0" * 64,
        }  # fmt: skip
        return written(found)(folder)

    return make


FAMILY.refused("side file before its beginning", _offset(-8), "R16", r"\$\.constants\.steps(\.offset)?")
FAMILY.refused("side file beyond its end", _offset(1 << 62), "R16", r"\$\.constants\.steps(\.offset)?")


def _special(put: Any) -> Make:
    def make(folder: Path) -> Path:
        put(folder / "model.json")
        return folder / "model.json"

    return make


FAMILY.refused("the file is a folder", _special(os.mkdir), "(R1)?", r"\$?")
FAMILY.refused("the file is a pipe", _special(os.mkfifo), "R1", r"\$?")
FAMILY.refused("the file is an endless device", _special(lambda file: file.symlink_to("/dev/zero")), "R1", r"\$?")
FAMILY.refused("the file is a link to itself", _special(lambda file: file.symlink_to("model.json")), "(R1)?", r"\$?")
FAMILY.refused("the file is missing", lambda folder: folder / "model.json", "(R1)?", r"\$?")

_TIED = "params.p_fc_weight.tied"
FAMILY.refused("weight with a NUL in its key", changed(_TIED, ["a\0b"]), "R6", r"\$.*")
FAMILY.shown("weights that are paths", changed(_TIED, ["../../canary/secret.txt", "/etc/passwd", "C:\\secret", "~/x"]))
FAMILY.shown("model name that is a path", changed("model_name", "../../canary/secret.txt"))
FAMILY.shown("modules that are paths", changed("nodes[0].source", "/../canary/secret.txt:3"))


def _index(*shards: Any) -> Make:
    def make(folder: Path) -> Path:
        save_file({"a": torch.zeros(1)}, folder / "one.safetensors")
        shutil.copy(folder / "one.safetensors", folder.parent / "canary" / "one.safetensors")
        (folder / "sub").mkdir()
        places = {f"w{number}": shard for number, shard in enumerate(shards)}
        (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
        return folder / "model.safetensors.index.json"

    return make


for name, shard in [
    ("shard in another folder", "../canary/one.safetensors"),
    ("shard of the machine", "/etc/passwd"),
    ("shard as a folder", "sub"),
    ("shard with a NUL", "a\0b.safetensors"),
    ("shard with an empty name", ""),
    ("shard of 10^5 characters", "x" * 10**5),
    ("shard of a number", 7),
    ("shard that is the index", "model.safetensors.index.json"),
]:
    FAMILY.refused(name, _index(shard), "R14", "index.json", opens="weights")


def _pack(**changes: Any) -> Make:
    def make(folder: Path) -> Path:
        pack = folder / "pack"
        pack.mkdir()
        shard = {"name": "values-00000.safetensors", "size": 1, "digest": "sha256:" + "0" * 64, **changes}
        index = {
            "format": "torch-ir golden", "version": 1, "model_name": "", "ir": "", "reference": "", "seed": 0,
            "notes": [], "files": [shard], "inputs": [], "values": [],
        }  # fmt: skip
        (pack / "index.json").write_text(json.dumps(index))
        return pack

    return make


for name, file in [
    ("in another folder", "../canary/secret.txt"),
    ("of the machine", "/etc/passwd"),
    ("with a NUL", "a\0b"),
]:
    FAMILY.refused(f"golden shard {name}", _pack(name=file), "R16", r"\$\.files\[0\]\.name", opens="pack")


def _odd_file_name(folder: Path) -> Path:
    graph().save(folder / "model.json")
    file = folder / "evil\x1b]0;owned\x07\u202e\x9b31m<script>.json"
    os.rename(folder / "model.json", file)
    return file


FAMILY.shown("a file whose own name is hostile", _odd_file_name)
