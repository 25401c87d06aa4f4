"""Graph files compressed with gzip: deterministic, bounded, and otherwise like plain JSON."""

import gzip
import json
import os
import subprocess
import sys
import zlib
from pathlib import Path

import pytest

from tests.command_line import failure
from tests.faults.kinds import graph as with_constant
from tests.graphs import everything, mlp
from torch_ir import load_ir, save_ir
from torch_ir.cli.dispatch import main
from torch_ir.errors import MistakenFileError, SerializationError
from torch_ir.formats import load_protobuf
from torch_ir.ir import IR, Limits
from torch_ir.ir.files.side_file import side_files
from torch_ir.ir.json.gzip_text import compress, decompress

ROOT = Path(__file__).parents[1]


# -- writing ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["model.json.gz", "MODEL.JSON.GZ", "model.gz"])
def test_a_name_that_ends_in_gz_is_written_compressed(tmp_path: Path, name: str) -> None:
    """The text inside is that of the plain file, for us and for any other reader of gzip."""
    save_ir(mlp(), tmp_path / "deep" / name)
    content = (tmp_path / "deep" / name).read_bytes()
    assert gzip.decompress(content).decode() == mlp().to_json()
    assert len(content) < len(mlp().to_json()) / 2
    assert load_ir(tmp_path / "deep" / name).to_json() == mlp().to_json()


def test_equal_graphs_are_equal_bytes(tmp_path: Path) -> None:
    """No time, no file name and no system is in the header."""
    everything().save(tmp_path / "one.json.gz")
    os.utime(tmp_path / "one.json.gz", (0, 0))
    IR.load(tmp_path / "one.json.gz").save(tmp_path / "two.json.gz")
    one, two = ((tmp_path / f"{name}.json.gz").read_bytes() for name in ("one", "two"))
    assert one == two
    assert one[:10] == b"\x1f\x8b\x08\0\0\0\0\0\0\xff"


def test_any_length_comes_back() -> None:
    """Including empty and incompressible data."""
    for data in (b"", b"a", bytes(range(256)) * 5, os.urandom(70_000), b" " * 3_000_000):
        assert decompress(compress(data), "x", len(data)) == gzip.decompress(compress(data)) == data


# -- reading ----------------------------------------------------------------------------------------------------------


def test_the_magic_bytes_decide_not_the_name(tmp_path: Path) -> None:
    """A compressed file under a plain name is read, and a plain one under a name that ends in gz."""
    (tmp_path / "a.json").write_bytes(compress(mlp().to_json().encode()))
    (tmp_path / "b.json.gz").write_text(mlp().to_json())
    for name in ("a.json", "b.json.gz"):
        assert IR.load(tmp_path / name).to_json() == mlp().to_json()


def test_what_another_tool_compressed_is_read(tmp_path: Path) -> None:
    """With a time and a file name in its header, at any level."""
    (tmp_path / "a.json.gz").write_bytes(gzip.compress(mlp().to_json().encode(), 1, mtime=12345))
    assert IR.load(tmp_path / "a.json.gz").to_json() == mlp().to_json()
    with gzip.open(tmp_path / "b.json.gz", "wt") as file:
        file.write(mlp().to_json())
    assert IR.load(tmp_path / "b.json.gz").to_json() == mlp().to_json()


WHOLE = compress(mlp().to_json().encode())
DAMAGED = [
    (WHOLE[:-1], "it is truncated"),
    (WHOLE[: len(WHOLE) // 2], "it is truncated"),
    (WHOLE[:2], "it is truncated"),
    (WHOLE[:-8] + bytes(4) + WHOLE[-4:], "incorrect data check"),
    (WHOLE[:-4] + bytes(4), "incorrect length check"),
    (WHOLE[:-4] + b"\xff" * 4, "incorrect length check"),
    (WHOLE + b"\0", "data follow the end of the stream"),
    (WHOLE * 2, "data follow the end of the stream"),
    (WHOLE[:2] + b"\x07" + WHOLE[3:], "unknown compression method"),
]


@pytest.mark.parametrize(("content", "why"), DAMAGED)
def test_damage_is_one_sentence(tmp_path: Path, content: bytes, why: str) -> None:
    path = tmp_path / "model.json.gz"
    path.write_bytes(content)
    with pytest.raises(SerializationError) as caught:
        IR.load(path)
    assert str(caught.value) == f"{path} is damaged gzip data: {why}"
    assert caught.value.rule == "R1"


def test_every_cut_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.json.gz"
    for length in range(2, len(WHOLE)):
        path.write_bytes(WHOLE[:length])
        with pytest.raises(SerializationError, match=r"damaged gzip data: it is truncated$"):
            IR.load(path)


def test_a_mistake_inside_is_told_as_in_plain_text(tmp_path: Path) -> None:
    path = tmp_path / "model.json.gz"
    path.write_bytes(compress(mlp().to_json().replace("relu", "gelu").encode()))
    with pytest.raises(SerializationError, match=r"^\$\.digest"):
        IR.load(path)
    path.write_bytes(compress(b'{"format": "torch-ir", }'))
    with pytest.raises(SerializationError, match="not JSON"):
        IR.load(path)
    path.write_bytes(compress(b'{"a": "\xe9"}'))
    with pytest.raises(SerializationError, match=r"model\.json\.gz is not UTF-8 text \(byte 7\)"):
        IR.load(path)


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"\x89PNG\r\n\x1a\n", "is a gzip archive, not a torch-ir graph"),
        (b"hello", "is a gzip archive, not a torch-ir graph"),
        (b'{"model_type": "llama"}', "is JSON, but not a torch-ir graph: it is a configuration of transformers"),
    ],
)
def test_what_it_is_instead_is_said(tmp_path: Path, content: bytes, told: str) -> None:
    path = tmp_path / "model.json.gz"
    path.write_bytes(compress(content))
    with pytest.raises(MistakenFileError) as caught:
        IR.load(path)
    assert str(caught.value) == f"{path} {told}"


def test_a_compressed_graph_under_the_name_of_protobuf(tmp_path: Path) -> None:
    (tmp_path / "a.pb").write_bytes(WHOLE)
    with pytest.raises(SerializationError, match=r"a\.pb is a graph in JSON; its name must not end in \.pb or"):
        load_protobuf(tmp_path / "a.pb")


# -- limits -----------------------------------------------------------------------------------------------------------


def test_the_limit_is_exact(tmp_path: Path) -> None:
    path, size = tmp_path / "model.json.gz", len(mlp().to_json())
    mlp().save(path)
    assert IR.load(path, Limits(expanded_bytes=size)).to_json() == mlp().to_json()
    with pytest.raises(SerializationError) as caught:
        IR.load(path, Limits(expanded_bytes=size - 1))
    assert caught.value.rule == "R2"
    told = f"{path}: the gzip data expand to more than {size - 1} bytes; Limits(expanded_bytes=...) allows more"
    assert str(caught.value) == told
    with pytest.raises(SerializationError, match=r"bytes are more than 10; Limits\(file_bytes=...\)"):
        IR.load(path, Limits(file_bytes=10))


LOAD = """
import resource, sys
from torch_ir.errors import SerializationError
from torch_ir.ir import IR
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
try:
    IR.load(sys.argv[1])
except SerializationError as error:
    assert error.rule == "R2", error
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


@pytest.mark.parametrize("stated", [1 << 31, 0, 1 << 20])
def test_a_bomb_takes_no_memory(tmp_path: Path, stated: int) -> None:
    """2 GiB in 2 MB are counted but not stored, whatever length the trailer states."""
    deflate = zlib.compressobj(9, wbits=-15)
    block = deflate.compress(bytes(1 << 20)) + deflate.flush(zlib.Z_FULL_FLUSH)
    end = zlib.compressobj(wbits=-15).flush() + bytes(4) + stated.to_bytes(4, "little")
    path = tmp_path / "model.json.gz"
    path.write_bytes(WHOLE[:10] + block * 2048 + end)
    command = [sys.executable, "-c", LOAD, str(path)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, cwd=ROOT)
    assert int(done.stdout) < 50_000  # KiB


# -- side files -------------------------------------------------------------------------------------------------------


def test_constants_lie_beside_a_compressed_file(tmp_path: Path) -> None:
    """The side file of the replaced graph is removed, as for a plain file."""
    path = tmp_path / "model.json.gz"
    for version in (0, 1, 0):
        with_constant(version).save(path)
        (side,) = side_files(path)
        assert side.name.startswith("model.json.gz.constants-")
        assert sorted(os.listdir(tmp_path)) == sorted([path.name, side.name])
        assert IR.load(path).to_json() == with_constant(version).to_json()
    with_constant(0).save(path, inline_limit=None)
    assert os.listdir(tmp_path) == [path.name]


def test_a_damaged_file_can_be_replaced(tmp_path: Path) -> None:
    """Its text is unknown, so the side file of the damaged file stays."""
    path = tmp_path / "model.json.gz"
    with_constant(0).save(path)
    (side,) = side_files(path)
    path.write_bytes(path.read_bytes()[:-10])
    assert side_files(path) == []
    with_constant(1).save(path)
    assert IR.load(path).to_json() == with_constant(1).to_json()
    assert side.exists()


def test_plain_and_compressed_files_do_not_share_a_side_file(tmp_path: Path) -> None:
    with_constant(0).save(tmp_path / "model.json")
    with_constant(0).save(tmp_path / "model.json.gz")
    with_constant(1).save(tmp_path / "model.json.gz")
    assert IR.load(tmp_path / "model.json").to_json() == with_constant(0).to_json()


# -- command line -----------------------------------------------------------------------------------------------------


def test_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """`convert` goes both ways, and commands read the file and print the same."""
    monkeypatch.chdir(tmp_path)
    mlp().save("m.json")
    assert main(["convert", "m.json", "-o", "m.json.gz", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    size = os.path.getsize("m.json.gz")
    assert said == {"file": "m.json.gz", "kind": "json.gz", "bytes": size, "side_files": []}
    assert main(["convert", "m.json.gz", "-o", "back.json"]) == 0
    assert Path("back.json").read_bytes() == Path("m.json").read_bytes()
    printed = []
    for name in ("m.json", "m.json.gz"):
        assert main(["info", name, "--json"]) == 0
        printed.append({**json.loads(capsys.readouterr().out), "file": None, "file_bytes": None})
    assert printed[0] == printed[1]
    assert printed[0]["digest"].startswith("sha256:")
    assert main(["explore", "m.json.gz"]) == 0
    assert Path("m.html").exists()
    capsys.readouterr()
    Path("cut.json.gz").write_bytes(WHOLE[:-1])
    assert failure(capsys, "info", "cut.json.gz") == "cut.json.gz is damaged gzip data: it is truncated [rule R1]"
    assert "No such file" in failure(capsys, "cost", "none.json.gz")
