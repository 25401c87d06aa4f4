"""Weights files that run code, have inconsistent headers, or expand without end."""

import io
import json
import os
import pickle
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch._utils import _rebuild_tensor_v2

from tests.hostile_files.case import Family, Make

FAMILY = Family("weights", opens="weights")


def _file(name: str, content: bytes | Callable[[], bytes]) -> Make:
    """A file with this content, or with what a function returns that takes long."""

    def make(folder: Path) -> Path:
        (folder / name).write_bytes(content if isinstance(content, bytes) else content())
        return folder / name

    return make


class _Reduces:
    """Calls `function` with `arguments` when it is unpickled."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self.call = function, arguments

    def __reduce__(self) -> Any:
        return self.call


def _saved(value: Any, **options: Any) -> bytes:
    target = io.BytesIO()
    torch.save(value, target, **options)
    return target.getvalue()


def _touch() -> _Reduces:
    return _Reduces(os.system, "touch pwned")


def _repacked(compression: int, change: Any = lambda name, data: data) -> bytes:
    """Return a state dict as torch saves it, repacked."""
    target = io.BytesIO()
    source = zipfile.ZipFile(io.BytesIO(_saved({"a": torch.zeros(1024)})))
    with zipfile.ZipFile(target, "w", compression) as archive:
        for name in source.namelist():
            archive.writestr(name, change(name, source.read(name)))
    return target.getvalue()


def _grown(name: str, data: bytes) -> bytes:
    """64 MiB of zeros, which compress to 64 KiB."""
    return bytes(64 << 20) if name.endswith("data/0") else data


def _in_odd_order(name: str, data: bytes) -> bytes:
    return b"middle" if name.endswith("byteorder") else data


class _Beyond(torch.Tensor):
    """A tensor that claims to be larger than its storage."""

    def __reduce_ex__(self, protocol: Any) -> Any:
        storage = torch.storage.TypedStorage(
            wrap_storage=torch.zeros(4).untyped_storage(), dtype=torch.float32, _internal=True
        )
        return _rebuild_tensor_v2, (storage, 1 << 40, (1 << 20,), (1 << 20,), False, {})


def _beyond() -> torch.Tensor:
    found: torch.Tensor = torch.zeros(4).as_subclass(_Beyond)
    return found


def _archive(program: bytes) -> bytes:
    """Return an archive of torch.save whose pickle is this program."""
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w") as archive:
        archive.writestr("archive/data.pkl", b"\x80\x02" + program + b".")
        archive.writestr("archive/version", "3\n")
        archive.writestr("archive/byteorder", "little")
    return target.getvalue()


_BYTES = (20 * 10**9).to_bytes(5, "little")
_BY_TYPE = (
    b"ctorch._tensor\n_rebuild_from_type_v2\n(cbuiltins\nbytearray\nctorch\nTensor\n\x8a\x05" + _BYTES + b"\x85}tR"
)
for name, file, content in [
    ("code in a .pt", "w.pt", _saved({"a": _touch()})),
    ("code in a .pth of the old kind", "w.pth", _saved({"a": _touch()}, _use_new_zipfile_serialization=False)),
    ("code in a .bin", "w.bin", pickle.dumps(_touch())),
    ("code in a plain pickle", "w.pt", pickle.dumps({"a": _touch()}, protocol=2)),
    ("eval in a pickle", "w.pt", pickle.dumps(_Reduces(eval, "open('pwned', 'w')"), protocol=2)),
    ("exec of builtins by GLOBAL", "w.pt", b"\x80\x02c__builtin__\nexec\nX\x0d\x00\x00\x00open('pwned')\x85R."),
    ("torch.load in a pickle", "w.pt", pickle.dumps(_Reduces(torch.load, "../canary/secret.txt"), protocol=2)),
    ("recursive pickle", "w.pt", b"\x80\x02" + b"]" * 10**5 + b"a" * (10**5 - 1) + b"."),
    ("memo bomb", "w.pt", b"\x80\x02" + b"".join(b"(" + b"h\0" * 2 + b"tq\0" for _ in range(60)) + b"."),
    ("string of 2^62 bytes", "w.pt", b"\x80\x04\x8d" + struct.pack("<Q", 1 << 62) + b"a."),
    ("cut short", "w.pt", _saved({"a": torch.zeros(64)})[:200]),
    ("empty", "w.pt", b""),
    ("text", "w.pt", b"weights\n"),
    ("a list of tensors", "w.pt", _saved([torch.zeros(2)])),
    ("compressed archive", "w.pt", _repacked(zipfile.ZIP_DEFLATED)),
    ("archive bomb", "w.pt", lambda: _repacked(zipfile.ZIP_DEFLATED, _grown)),
    ("bzip2 archive", "w.pt", _repacked(zipfile.ZIP_BZIP2)),
    ("archive with paths", "w.pt", _repacked(zipfile.ZIP_STORED).replace(b"archive/data/0", b"../canary/dat0")),
    ("storage cut short", "w.pt", _repacked(zipfile.ZIP_STORED, lambda n, d: d[:7] if n.endswith("data/0") else d)),
    ("byte order unknown", "w.pt", _repacked(zipfile.ZIP_STORED, _in_odd_order)),
    ("view beyond its storage", "w.pt", _saved({"a": _beyond()})),
    ("unknown suffix", "w.pkl", pickle.dumps({"a": _touch()})),
    ("key of 10^6 nested tuples", "w.pt", _archive(b"})" + b"\x85" * 10**6 + b"K\x01s")),
    ("key of 10^6 nested tuples, of the old kind", "w.pt", b"\x80\x02})" + b"\x85" * 10**6 + b"K\x01s."),
    ("key of 2^70 shared tuples", "w.pt", _archive(b"})q\x00" + b"(h\x00h\x00tq\x00" * 70 + b"K\x01s")),
    ("20 GB of a few bytes", "w.pt", _archive(b"cbuiltins\nbytearray\n\x8a\x05" + _BYTES + b"\x85R")),
    ("20 GB of a few bytes, by another call", "w.pt", _archive(_BY_TYPE)),
    ("a nested tensor", "w.pt", _archive(b"ctorch._utils\n_rebuild_nested_tensor\n)R")),
    ("stack that is empty", "w.pt", _archive(b"\x85\x85\x85")),
    ("unknown pickle opcode", "w.pt", _archive(b"\xff")),
]:  # fmt: skip
    FAMILY.refused(name, _file(file, content), "R14", file.replace(".", r"\."))


def _script(folder: Path) -> Path:
    """A compiled program, which torch.load would hand to another reader."""
    module = torch.jit.trace(torch.nn.Linear(2, 2), torch.zeros(1, 2))
    module.save(str(folder / "w.pt"))
    return folder / "w.pt"


def _safetensors(header: Any, data: bytes = b"", length: int | None = None) -> Make:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return _file("w.safetensors", struct.pack("<Q", len(text) if length is None else length) + text + data)


def _entry(dtype: str = "F32", shape: Any = (2,), offsets: Any = (0, 8)) -> dict[str, Any]:
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}


for name, make in [
    ("empty", _file("w.safetensors", b"")),
    ("seven bytes", _file("w.safetensors", bytes(7))),
    ("header of 2^62 bytes", _safetensors(b"{}", length=1 << 62)),
    ("header of 2^64 - 1 bytes", _safetensors(b"{}", length=(1 << 64) - 1)),
    ("header beyond the file", _safetensors(b"{}", length=1000)),
    ("header that is not JSON", _safetensors(b"\x80\x02}.")),
    ("header that is a list", _safetensors([1])),
    ("header of 10^6 levels", _safetensors(b"[" * 10**6)),
    ("name twice", _safetensors(b'{"a": %s, "a": %s}' % ((json.dumps(_entry()).encode(),) * 2), bytes(8))),
    ("dtype unknown", _safetensors({"a": _entry("F3")}, bytes(8))),
    ("dtype that lies", _safetensors({"a": _entry("F64")}, bytes(8))),
    ("shape that lies", _safetensors({"a": _entry(shape=(3,))}, bytes(8))),
    ("shape of 2^62", _safetensors({"a": _entry(shape=(1 << 62, 1 << 62))}, bytes(8))),
    ("shape of 10^5 times 2^62", _safetensors({"a": _entry(shape=(1 << 62,) * 10**5)}, bytes(8))),
    ("shape that wraps to 8 bytes", _safetensors({"a": _entry(shape=((1 << 62) + 2,))}, bytes(8))),
    ("no elements of 2^124 rows", _safetensors({"a": _entry(shape=(1 << 62, 1 << 62, 0), offsets=(0, 0))})),
    ("negative size", _safetensors({"a": _entry(shape=(-2, -1))}, bytes(8))),
    ("sizes of text", _safetensors({"a": _entry(shape=("2",))}, bytes(8))),
    ("offsets beyond the file", _safetensors({"a": _entry(offsets=(0, 8))}, bytes(4))),
    ("offsets of 2^62", _safetensors({"a": _entry(offsets=(1 << 62, (1 << 62) + 8))}, bytes(8))),
    ("negative offsets", _safetensors({"a": _entry(offsets=(-8, 0))}, bytes(8))),
    ("offsets backwards", _safetensors({"a": _entry(offsets=(8, 0))}, bytes(8))),
    ("three offsets", _safetensors({"a": _entry(offsets=(0, 8, 16))}, bytes(8))),
    ("tensors that overlap", _safetensors({"a": _entry(), "b": _entry(offsets=(4, 12))}, bytes(12))),
    ("bytes outside all tensors", _safetensors({"a": _entry()}, bytes(800))),
]:
    FAMILY.refused(f"safetensors: {name}", make, "R14", r"w\.safetensors")


def _index(text: str | bytes) -> Make:
    return _file("w.safetensors.index.json", text if isinstance(text, bytes) else text.encode())


for name, text in [
    ("no JSON", "{"),
    ("a list", "[1, 2]"),
    ("without map", "{}"),
    ("map of numbers", '{"weight_map": {"a": 1}}'),
    ("missing shard", '{"weight_map": {"a": "b.safetensors"}}'),
    ("10^6 levels", "[" * 10**6),
    ("not UTF-8", b"\xff\xfe"),
    ("key twice", '{"weight_map": {"a": "x.safetensors", "a": "y.safetensors"}}'),
]:
    FAMILY.refused(f"index: {name}", _index(text), "R14", "index.json")

FAMILY.refused("a compiled program", _script, "R14", r"w\.pt")
