"""Corrupted or hostile golden packs and dumps are rejected."""

import json
import os
import shutil
import subprocess
from argparse import Namespace
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from tests.golden_packs import NET, X, compared, dumped, golden
from tests.proof import captured
from torch_ir import Limits, compare_golden, load_weights, open_weights
from torch_ir.cli.verb import show
from torch_ir.errors import MissingFileError, SerializationError
from torch_ir.golden import pack as pack_file
from torch_ir.golden.dumps import open_dumps
from torch_ir.golden.pack import read_pack


@pytest.fixture
def pack(tmp_path: Path) -> Path:
    golden(tmp_path / "pack")
    return tmp_path / "pack"


def rewrite(pack: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    """Change an index and remove its digest, as a deliberate edit would."""
    document = json.loads((pack / "index.json").read_text())
    document.pop("digest")
    change(document)
    (pack / "index.json").write_text(json.dumps(document))


CHANGES: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "version": (lambda d: d.update(version=2), "reads version 1"),
    "format": (lambda d: d.update(format="other"), "is not the index of a golden pack"),
    "unknown key": (lambda d: d.update(extra=1), "unknown key 'extra'"),
    "path": (lambda d: d["files"][0].update(name="../a-00001.safetensors"), "is not the name of a shard"),
    "unknown file": (lambda d: d["values"][0].update(file="b-00001.safetensors"), "is not a file of the pack"),
    "dtype": (lambda d: d["values"][0].update(dtype="float33"), "unknown dtype 'float33'"),
    "shape": (lambda d: d["values"][0].update(shape=[-1]), "cannot be -1"),
    "open shape": (lambda d: d["values"][0].update(shape=["batch"], stored="bytes"), "must be numbers"),
    "other shape": (lambda d: d["values"][0].update(shape=[8, 3]), "the index says"),
    "other dtype": (lambda d: d["values"][0].update(dtype="float16"), "the index says"),
    "stored": (lambda d: d["values"][0].update(stored="pickle"), "unknown storage"),
    "pairs": (lambda d: d["values"][0].update(stored="pairs"), "cannot be read as"),
    "type": (lambda d: d["values"][0].update(call="one"), "expected a whole number"),
    "type of a number": (lambda d: d["values"][0].update(rtol="0.1"), "expected a number, found '0.1'"),
    "no number": (lambda d: d["inputs"][0].update(atol=None), "expected a number, found None"),
    "an empty value": (lambda d: d["values"].append({}), "'name' is missing"),
    "no file": (lambda d: d["inputs"][0].pop("file"), r"inputs\[0\]: 'file' is missing"),
    "name": (lambda d: d["values"][0].update(name="absent"), "absent"),
    "size": (lambda d: d["files"][0].update(size=1), "is damaged"),
    "shard twice": (lambda d: d["files"].append(d["files"][0]), "is listed twice"),
    "value twice": (lambda d: d["values"].append(d["values"][0]), "is listed twice"),
    "quantised": (lambda d: d["values"][0].update(dtype="qint8"), "no quantised tensors"),
    "colours in a note": (lambda d: d["notes"].append("\x1b[2J"), r"\$\.notes\[\d\]: .* cannot be printed"),
    "colours in a module": (lambda d: d["values"][0].update(module="\x1b[2J"), "cannot be printed"),
    "colours in what is read": (lambda d: d["values"][0].update(reads=["\u202e"]), "cannot be printed"),
    "a module of 10^5 levels": (lambda d: d["values"][0].update(module="a." * 10**5), r"Limits\(name_length=\.\.\.\)"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_wrong_index_is_refused(pack: Path, name: str) -> None:
    """Every contradiction in an index is one sentence."""
    change, message = CHANGES[name]
    rewrite(pack, change)
    with pytest.raises(SerializationError, match=message):
        read_whole(pack)


def test_an_index_that_asks_for_too_much_is_refused(pack: Path, tmp_path: Path) -> None:
    """Unread; larger limits can be set."""
    size = (pack / "index.json").stat().st_size
    with pytest.raises(SerializationError, match=r"Limits\(file_bytes=\.\.\.\) allows more"):
        read_pack(pack, Limits(file_bytes=size - 1))
    with pytest.raises(SerializationError, match=r"Limits\(values=\.\.\.\) allows more"):
        compare_golden(pack, tmp_path, limits=Limits(values=3))
    assert len(read_pack(pack, Limits(file_bytes=size)).values) > 3


def read_whole(pack: Path) -> list[Tensor]:
    """Every tensor of a pack."""
    found = read_pack(pack)
    return [found.tensor(value) for value in (*found.inputs, *found.values)]


def test_damage_is_seen(pack: Path) -> None:
    """A changed index, a changed shard, a missing shard and a link are refused."""
    values = dumped(captured(NET, X), NET.state_dict(), X)
    shard = pack / "values-00001.safetensors"
    whole = shard.read_bytes()
    shard.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    with pytest.raises(SerializationError, match="is damaged"):
        compared(pack, values)
    shard.rename(pack / "elsewhere")
    with pytest.raises(MissingFileError, match="is missing from the pack"):
        compared(pack, values)
    shard.symlink_to(pack / "elsewhere")
    with pytest.raises(MissingFileError, match="is missing from the pack"):
        compared(pack, values)
    index = pack / "index.json"
    index.write_text(index.read_text().replace('"seed": 0', '"seed": 1'))
    with pytest.raises(SerializationError, match="digest mismatch"):
        compared(pack, values)
    shutil.rmtree(pack)
    with pytest.raises(MissingFileError, match="is not a golden pack"):
        compare_golden(pack, pack.parent / "pack.safetensors")


class Bomb:
    def __reduce__(self) -> Any:
        return (Path.touch, (Path("exploded"),))


def test_hostile_dumps(pack: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pickles are never loaded; damaged files, names that occur twice, and folders without dumps are one sentence."""
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "dumps"
    folder.mkdir()
    with pytest.raises(SerializationError, match="contains no dumps"):
        compare_golden(pack, folder)
    numpy.save(folder / "tanh.npy", numpy.array([Bomb()], dtype=object), allow_pickle=True)
    with pytest.raises(SerializationError, match=r"cannot read .*tanh\.npy"):
        compare_golden(pack, folder)
    assert not Path("exploded").exists()
    (folder / "tanh.npy").write_bytes(b"\x93NUMPY")
    with pytest.raises(SerializationError, match=r"cannot read .*tanh\.npy"):
        compare_golden(pack, folder)
    numpy.save(folder / "tanh.npy", numpy.array(["a"]))
    with pytest.raises(SerializationError, match="torch does not support arrays of dtype"):
        compare_golden(pack, folder)
    with (folder / "tanh.npy").open("wb") as file:
        numpy.savez(file, tanh=X.numpy())
    with pytest.raises(SerializationError, match=r"tanh\.npy is not \.npy"):
        compare_golden(pack, folder)
    numpy.save(folder / "tanh.npy", X.numpy())
    save_file({"tanh": X}, folder / "all.safetensors")
    with pytest.raises(SerializationError, match="'tanh' is dumped twice"):
        compare_golden(pack, folder)
    (folder / "all.safetensors").write_bytes(b"\xff" * 20)
    with pytest.raises(SerializationError, match=r"cannot read .*all\.safetensors"):
        compare_golden(pack, folder)
    with pytest.raises(SerializationError, match="no such file or folder"):
        compare_golden(pack, tmp_path / "nothing")


def test_one_number_of_a_dtype_that_numpy_lacks(tmp_path: Path) -> None:
    """A scalar of bfloat16 is stored as its two bytes, like larger arrays."""
    numpy.save(tmp_path / "x.npy", numpy.zeros((), dtype="V2"))
    with open_dumps(tmp_path / "x.npy") as dumps:
        assert dumps["x"]().tolist() == [0, 0]


def test_an_archive_is_closed_after_an_error(pack: Path, tmp_path: Path) -> None:
    """Even while the error is kept, which keeps what was read."""
    archive = tmp_path / "dumps.npz"
    numpy.savez(archive, tanh=X.numpy())
    archive.write_bytes(archive.read_bytes().replace(b"NUMPY", b"DUMMY"))
    with pytest.raises(SerializationError, match=r"cannot read .*dumps\.npz") as kept:
        compare_golden(pack, archive)
    assert archive not in [Path(os.readlink(each)) for each in Path("/proc/self/fd").iterdir() if each.is_symlink()]
    assert kept.value


def test_a_shard_is_digested_once(pack: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if values of two shards alternate; a shard that changes meanwhile is digested again."""
    read: list[str] = []
    digest = pack_file.file_digest
    monkeypatch.setattr(pack_file, "file_digest", lambda path: read.append(path.name) or digest(path))
    found = read_pack(pack)
    pairs = list(zip(found.inputs * len(found.values), found.values, strict=False))
    assert len({value.file for pair in pairs for value in pair}) == 2
    for one, other in pairs:
        found.tensor(one)
        found.tensor(other)
    assert sorted(read) == sorted({value.file for pair in pairs for value in pair})
    shard = pack / found.values[0].file
    shard.write_bytes(bytes(shard.stat().st_size))
    found.tensor(found.inputs[0])
    with pytest.raises(SerializationError, match="is damaged"):
        found.tensor(found.values[0])


def test_few_unknown_dumps_are_compared_with_all_names(
    pack: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The nearest name is looked for where it is shown."""
    asked: list[str] = []
    module = import_module("torch_ir.golden.compare_dumps")
    monkeypatch.setattr(module, "did_you_mean", lambda word, _: asked.append(word) or "")
    save_file({f"unknown{number}": torch.zeros(1) for number in range(500)}, tmp_path / "dumps.safetensors")
    assert len(compare_golden(pack, tmp_path / "dumps.safetensors").unknown) == 500
    assert len(asked) == 8


@pytest.mark.parametrize("dtype", ["float4_e2m1fn_x2", "bits8", "uint4", "int2"])
def test_dtypes_without_arithmetic_are_compared_by_their_bytes(dtype: str, tmp_path: Path) -> None:
    for number, dumps in enumerate([torch.ones(4, 1, dtype=torch.uint8), torch.zeros(4, 1, dtype=torch.uint8)]):
        folder = write_pack(tmp_path / str(number), dtype, torch.ones(4, dtype=torch.uint8))
        save_file({"v": dumps}, tmp_path / "dumps.safetensors")
        assert compare_golden(folder, tmp_path / "dumps.safetensors").is_equal is (number == 0)
        save_file({"v": torch.ones(4)}, tmp_path / "dumps.safetensors")  # numbers, which have no such dtype
        assert not compare_golden(folder, tmp_path / "dumps.safetensors").is_equal


def write_pack(folder: Path, dtype: str, stored: Tensor) -> Path:
    """Write a pack of one value, stored as bytes."""
    folder.mkdir()
    shard = "values-00001.safetensors"
    save_file({"v": stored}, folder / shard)
    file = {"name": shard, "size": (folder / shard).stat().st_size, "digest": pack_file.file_digest(folder / shard)}
    value = {"name": "v", "shape": [stored.numel()], "dtype": dtype, "stored": "bytes", "file": shard}
    index = {
        "format": "torch-ir golden", "version": 1, "model_name": "Net", "ir": "", "reference": "", "seed": 0,
        "notes": [], "files": [file], "inputs": [], "values": [value],
    }  # fmt: skip
    (folder / "index.json").write_text(json.dumps(index))
    return folder


def test_a_folder_of_any_depth_is_searched(tmp_path: Path) -> None:
    """Without recursion; it is removed here, because that of pytest and Python is recursive."""
    deep = tmp_path.joinpath(*["d"] * 1200)
    try:
        for level in range(100, 1201, 100):
            tmp_path.joinpath(*["d"] * level).mkdir(parents=True)
        save_file({"v": torch.zeros(1)}, deep / "v.safetensors")
        with open_dumps(tmp_path) as found:
            assert list(found) == ["v"]
    finally:
        subprocess.run(["rm", "-rf", tmp_path / "d"], check=True)


def test_no_report_writes_control_characters(capsys: pytest.CaptureFixture[str]) -> None:
    """Whatever a report contains, the command line prints printable text."""
    show(Namespace(json=False), dict, lambda: "a\x1b[2J\u202e\nb")
    assert capsys.readouterr().out == "a\\x1b[2J\\u202e\nb\n"


def safetensors_of(path: Path, dtype: str, shape: list[int], size: int) -> Path:
    """A file with one tensor of zeros, `tanh`, of any dtype of the format."""
    header = json.dumps({"tanh": {"dtype": dtype, "shape": shape, "data_offsets": [0, size]}}).encode()
    path.write_bytes(len(header).to_bytes(8, "little") + header + bytes(size))
    return path


def test_dumps_of_dtypes_that_torch_does_not_convert(pack: Path, tmp_path: Path) -> None:
    """One that torch lacks is rejected; one that it cannot compute with differs."""
    with pytest.raises(SerializationError, match=r"cannot read .*F6\.safetensors"):
        compare_golden(pack, safetensors_of(tmp_path / "F6.safetensors", "F6_E2M3", [4], 3))
    found = compare_golden(pack, safetensors_of(tmp_path / "F4.safetensors", "F4", [2], 1))
    assert found.differing == ["tanh"]


def test_scales_of_eight_bits(tmp_path: Path) -> None:
    """Weights of this dtype are opened as they are loaded."""
    path = safetensors_of(tmp_path / "scales.safetensors", "F8_E8M0", [2], 2)
    opened, loaded = open_weights(path)["tanh"], load_weights(path)["tanh"]
    assert opened.load().dtype == loaded.dtype == torch.float8_e8m0fnu
