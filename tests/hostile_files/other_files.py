"""Other files that are read: golden packs, dumps of other runtimes, layers of a target, contracts."""

import hashlib
import io
import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import torch
from safetensors.torch import save_file

from tests.hostile_files.case import Family, Make
from tests.hostile_files.documents import graph

FAMILY = Family("packs, dumps, layers, contracts")
_SHARD = "values-00000.safetensors"


def _pack(edit: Callable[[dict[str, Any], Path], Any]) -> Make:
    """A golden pack of one value, after an edit of its index or its shard."""

    def make(folder: Path) -> Path:
        pack = folder / "pack"
        pack.mkdir()
        save_file({"relu": torch.zeros(2)}, pack / _SHARD)
        index: dict[str, Any] = {
            "format": "torch-ir golden", "version": 1, "model_name": "Net", "ir": "", "reference": "torch", "seed": 0,
            "notes": [], "files": [], "inputs": [],
            "values": [{"name": "relu", "shape": [2], "dtype": "float32", "stored": "plain", "file": _SHARD}],
        }  # fmt: skip
        data = (pack / _SHARD).read_bytes()
        digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
        index["files"] = [{"name": _SHARD, "size": len(data), "digest": digest}]
        edit(index, pack)
        if not (pack / "index.json").exists():
            (pack / "index.json").write_text(json.dumps(index))
        return pack

    return make


def _linked(index: dict[str, Any], pack: Path) -> None:
    (pack / _SHARD).rename(pack / "other")
    (pack / _SHARD).symlink_to("other")


for name, edit, rule, place in [
    ("a future version", lambda i, p: i.update(version=2), "R4", ".*"),
    ("unknown key", lambda i, p: i.update(code="import os"), "R4", r"\$.*"),
    ("dtype unknown", lambda i, p: i["values"][0].update(dtype="object"), "R5", r"\$\.values\[0\].*"),
    ("stored in a way unknown", lambda i, p: i["values"][0].update(stored="pickle"), "R5", r"\$\.values\[0\]\.stored"),
    ("value in no shard", lambda i, p: i["values"][0].update(file="../x"), "R8|R16", r"\$\.values\[0\]\.file"),
    ("index of 10^6 levels", lambda i, p: (p / "index.json").write_text("[" * 10**6), "R2", r"\$?"),
    ("index that is a pickle", lambda i, p: (p / "index.json").write_bytes(b"\x80\x04N."), "R1", r"\$?"),
    ("shard cut short", lambda i, p: (p / _SHARD).write_bytes(b"12345678"), "R16", _SHARD),
    ("shard as a link", _linked, "R16", _SHARD),
    ("shape that lies", lambda i, p: i["values"][0].update(shape=[1 << 40]), "R7", _SHARD),
    ("a tensor twice", lambda i, p: i["values"].append(i["values"][0]), "R8", r"\$\.values"),
    ("quantised dtype", lambda i, p: i["values"][0].update(dtype="qint8"), "R5", r"\$\.values\[0\]\.dtype"),
    ("note with colours", lambda i, p: i["notes"].append("\x1b[2J\x07"), "R6", r"\$\.notes\[0\]"),
    ("module with colours", lambda i, p: i["values"][0].update(module="\x1b[31m"), "R6", r"\$\.values\[0\]\.module"),
    (
        "module of 10^6 levels",
        lambda i, p: i["values"][0].update(module="a." * 10**6),
        "R2",
        r"\$\.values\[0\]\.module",
    ),
    (
        "reads with line ends",
        lambda i, p: i["values"][0].update(reads=["a\n\u202e"]),
        "R6",
        r"\$\.values\[0\]\.reads.*",
    ),
    ("name that no shard holds", lambda i, p: i["values"][0].update(name="ghost"), "R8", _SHARD),
]:
    FAMILY.refused(f"pack: {name}", _pack(edit), rule, place, opens="pack")


def _dump(name: str, content: bytes) -> Make:
    def make(folder: Path) -> Path:
        (folder / name).write_bytes(content)
        return folder / name

    return make


def _array(value: Any, **options: Any) -> bytes:
    target = io.BytesIO()
    numpy.save(target, value, **options)
    return target.getvalue()


def _zip(**parts: bytes) -> bytes:
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in parts.items():
            archive.writestr(f"{name}.npy", data)
    return target.getvalue()


_HUGE = (
    _array(numpy.zeros(2))
    .replace(b"(2,)", b"(1 << 40,)")
    .replace(b"shape': (1 << 40,), }      ", b"shape': (1 << 40,), }")
)
_OBJECTS = _array(numpy.array([print, 1], dtype=object), allow_pickle=True)
for name, file, content in [
    ("objects in an .npy", "d.npy", _OBJECTS),
    ("objects in an .npz", "d.npz", _zip(a=_OBJECTS)),
    ("sizes that are code", "d.npy", _HUGE),
    ("sizes of 2^40", "d.npy", _array(numpy.zeros(2)).replace(b"(2,), }             ", b"(1099511627776,), } ")),
    ("header cut short", "d.npy", _array(numpy.zeros(2))[:20]),
    ("no archive", "d.npz", b"PK\x03\x04"),
    ("a pickle by another name", "d.npy", b"\x80\x04N."),
    ("no tensors", "d.safetensors", b"\xff" * 64),
    ("unknown suffix", "d.pkl", b"\x80\x04N."),
]:
    FAMILY.refused(f"dump: {name}", _dump(file, content), r"(R\d+)?", file.replace(".", r"\."), opens="dumps")


for name, content, place in [
    ("no protobuf", b"\xff" * 64, ".*"),
    ("a graph", b"\x0a\x08torch-ir\x10\x01", ".*"),
    ("unknown field", b"\x0a\x10torch-ir-lowered\x10\x01\xfa\x07\x01a", ".*"),
]:
    FAMILY.refused(f"layers: {name}", _dump("lowered.pb", content), "R1|R4", place, opens="lowered")

for name, file, text in [
    ("no TOML", "npu.toml", "name = "),
    ("10^5 nested lists", "npu.toml", "ops = " + "[" * 10**5),
    ("10^6 levels", "npu.json", "[" * 10**6),
    ("unknown key", "npu.toml", 'ops = ["aten.relu"]\nplugin = "evil"\n'),
    ("condition that calls", "npu.json", '{"ops": [{"op": "aten.relu", "require": ["open(1)"]}]}'),
    ("condition of 10^5 brackets", "npu.json", '{"ops": [{"op": "aten.relu", "require": ["%s1"]}]}' % ("(" * 10**5)),
    ("operator that is a path", "npu.json", '{"ops": ["../canary/secret.txt"]}'),
    ("pattern without end", "npu.json", '{"ops": ["%s"]}' % ("*a" * 10**5)),
    ("code", "npu.py", "import os"),
]:
    FAMILY.refused(
        f"contract: {name}", _dump(file, text.encode()), r"(R\d+)?", file.replace(".", r"\."), opens="contract"
    )


def _saved_graph(folder: Path) -> Path:
    graph().save(folder / "npu.json")
    return folder / "npu.json"


FAMILY.refused("contract: a graph", _saved_graph, r"(R\d+)?", r"npu\.json", opens="contract")
