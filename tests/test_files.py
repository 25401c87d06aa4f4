"""Files on disk: written atomically, read within limits, one type of error."""

import copy
import gzip
import json
import os
import pickle
import stat
from pathlib import Path
from typing import Any

import pytest
from safetensors.numpy import load_file

from tests.graphs import chain, everything, mlp, tensor
from tests.refusals import without_digest
from torch_ir import load_ir, save_ir
from torch_ir.errors import MissingFileError, SerializationError
from torch_ir.ir import IR, Limits, OpNode, Param, TensorData, TensorMeta

# -- files ------------------------------------------------------------------------------------------------------------


def test_save_and_load(tmp_path: Path) -> None:
    """The file is the text in UTF-8; folders are created; the documented functions do the same."""
    path = tmp_path / "deep" / "er" / "model.json"
    ir = everything()
    ir.save(path)
    assert path.read_bytes() == ir.to_json().encode()
    assert IR.load(str(path)).to_json() == ir.to_json()
    save_ir(mlp(), tmp_path / "other" / "mlp.json")
    assert load_ir(tmp_path / "other" / "mlp.json").to_json() == mlp().to_json()


def test_a_file_that_cannot_be_read_is_a_serialization_error(tmp_path: Path) -> None:
    """Missing, a folder, not UTF-8, with a byte order mark, empty, too large: one kind of error that names the file."""

    def error(name: str, content: bytes | None = None, limits: Limits = Limits()) -> str:
        if content is not None:
            (tmp_path / name).write_bytes(content)
        with pytest.raises(SerializationError) as caught:
            IR.load(tmp_path / name, limits)
        return str(caught.value)

    assert error("none.json").endswith("none.json: No such file or directory")
    assert error("").endswith("is a folder, not a graph file")
    assert error("latin.json", b'{"a": "\xe9"}').endswith("latin.json is not UTF-8 text (byte 7)")
    assert "BOM" in error("bom.json", b"\xef\xbb\xbf{}")
    assert error("empty.json", b"").endswith("empty.json is empty")
    assert error("large.json", b" " * 11, Limits(file_bytes=10)).endswith(
        "11 bytes are more than 10; Limits(file_bytes=...) allows more"
    )
    assert "it has no 'format'" in error("small.json", b"{}        ", Limits(file_bytes=10))


def test_what_may_never_end_is_refused(tmp_path: Path) -> None:
    """Devices and pipes have no size; they are rejected without waiting."""
    os.mkfifo(tmp_path / "pipe")
    for path in ("/dev/zero", tmp_path / "pipe"):
        with pytest.raises(SerializationError, match="is not a plain file"):
            IR.load(path)


def test_saving_replaces_a_file_in_one_step(tmp_path: Path) -> None:
    """The new file is another file under the old name, with the old permissions, and nothing is left beside it."""
    path = tmp_path / "model.json"
    chain("aten.neg.default").save(path)
    os.chmod(path, 0o640)
    with open(path) as reader:
        mlp().save(path)
        assert reader.read() == chain("aten.neg.default").to_json()
    assert path.read_text() == mlp().to_json()
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert os.listdir(tmp_path) == ["model.json"]


@pytest.mark.parametrize("step", ["fsync", "replace", "fchmod"])
def test_a_write_that_fails_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    """Whichever step fails: the old file is whole, no temporary is left, and the error is typed."""
    path = tmp_path / "model.json"
    mlp().save(path)

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, step, fail)
    with pytest.raises(SerializationError, match=r"cannot write .*model\.json: No space left on device"):
        everything().save(path)
    assert path.read_text() == mlp().to_json()
    assert os.listdir(tmp_path) == ["model.json"]


def test_an_interrupted_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C while saving is not an error of ours, but the old file stays all the same."""
    path = tmp_path / "model.json"
    mlp().save(path)

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        everything().save(path)
    assert path.read_text() == mlp().to_json()
    assert os.listdir(tmp_path) == ["model.json"]


def test_a_graph_that_cannot_be_written_leaves_the_old_file(tmp_path: Path) -> None:
    """The text is produced before the file is touched."""
    path = tmp_path / "model.json"
    mlp().save(path)
    broken = mlp()
    broken.nodes[0].attrs["value"] = object()
    with pytest.raises(SerializationError, match="cannot be written to a file"):
        broken.save(path)
    assert path.read_text() == mlp().to_json()


def test_a_place_that_cannot_be_written_is_a_serialization_error(tmp_path: Path) -> None:
    """A folder under that name, a file in place of the folder, no permission."""
    (tmp_path / "folder").mkdir()
    with pytest.raises(SerializationError, match=r"cannot write .*folder: Is a directory"):
        mlp().save(tmp_path / "folder")
    (tmp_path / "file").write_text("")
    with pytest.raises(SerializationError, match=r"cannot write .*model\.json"):
        mlp().save(tmp_path / "file" / "model.json")
    assert sorted(os.listdir(tmp_path)) == ["file", "folder"]


# -- constants beside the file ----------------------------------------------------------------------------------------

SIDE = "model.json.constants-*.safetensors"


def with_constants(**raw: bytes) -> IR:
    """A graph that adds up constants of one byte per element."""
    params = [
        TensorMeta(f"c_{key}", (len(value),), "uint8", param=Param((key,), "constant")) for key, value in raw.items()
    ]
    for param, (key, value) in zip(params, raw.items(), strict=True):
        param.param = Param((key,), "constant", TensorData((len(value),), "uint8", value))
    made = [tensor(f"neg_{key}", len(value), dtype="uint8") for key, value in raw.items()]
    nodes = [
        OpNode(out.name, "aten.neg.default", [c], [out], args=["self"]) for c, out in zip(params, made, strict=True)
    ]
    return IR(nodes, [], made, params=params).check()


def side_files(folder: Path) -> list[Path]:
    return sorted(folder.glob(SIDE))


def test_large_constants_lie_beside_the_file(tmp_path: Path) -> None:
    """Up to the limit they are inline, beyond it in one safetensors file; loading yields the same graph."""
    ir = with_constants(small=b"abcd", large=b"abcde", larger=bytes(range(200)))
    ir.save(tmp_path / "model.json", inline_limit=4)
    (side,) = side_files(tmp_path)
    stored = json.loads((tmp_path / "model.json").read_text())["constants"]
    assert {key: sorted(record) for key, record in stored.items()} == {
        "small": ["base64", "dtype", "shape"],
        "large": ["digest", "dtype", "file", "offset", "shape"],
        "larger": ["digest", "dtype", "file", "offset", "shape"],
    }
    assert {key: value.tobytes() for key, value in load_file(side).items()} == {
        "large": b"abcde",
        "larger": bytes(range(200)),
    }
    assert IR.load(tmp_path / "model.json").to_json() == ir.to_json()


def test_the_limit_has_a_default_and_can_be_lifted(tmp_path: Path) -> None:
    """64 KiB stay in the text; None keeps everything there, and then the file is the graph's text."""
    with_constants(c=bytes(1 << 16)).save(tmp_path / "model.json")
    assert side_files(tmp_path) == []
    ir = with_constants(c=bytes((1 << 16) + 1))
    save_ir(ir, tmp_path / "model.json")
    assert len(side_files(tmp_path)) == 1
    save_ir(ir, tmp_path / "model.json", inline_limit=None)
    assert side_files(tmp_path) == []
    assert (tmp_path / "model.json").read_text() == ir.to_json()


def test_equal_graphs_give_equal_pairs(tmp_path: Path) -> None:
    """Both files have the same bytes, whether the graph was built or loaded."""
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    with_constants(a=b"abcde", b=b"vwxyz").save(tmp_path / "one" / "model.json", inline_limit=0)
    IR.load(tmp_path / "one" / "model.json").save(tmp_path / "two" / "model.json", inline_limit=0)
    one, two = ({path.name: path.read_bytes() for path in (tmp_path / name).iterdir()} for name in ("one", "two"))
    assert one == two
    assert len(one) == 2


def test_equal_constants_are_stored_once_under_free_names(tmp_path: Path) -> None:
    """Also those of functions, whose keys may be taken; a reserved key of the format is handled."""
    ir = with_constants(a=b"abcde", b=b"abcde", c=b"other", __metadata__=b"named")
    ir.functions["body"] = with_constants(c=b"inner")
    ir.save(tmp_path / "model.json", inline_limit=0)
    (side,) = side_files(tmp_path)
    assert {key: value.tobytes() for key, value in load_file(side).items()} == {
        "a": b"abcde", "c": b"other", "c_1": b"inner", "__metadata___1": b"named",
    }  # fmt: skip
    assert IR.load(tmp_path / "model.json").to_json() == ir.to_json()


def test_elements_are_aligned_for_other_readers(tmp_path: Path) -> None:
    """The header is padded to eight bytes and wide elements come first, so constants can be memory-mapped."""
    ir = with_constants(bytes_=b"abc")
    ir.params.append(TensorMeta("c_wide", (2,), "float64", param=Param(("wide",), "constant")))
    ir.params[-1].param = Param(("wide",), "constant", TensorData((2,), "float64", bytes(16)))
    ir.save(tmp_path / "model.json", inline_limit=0)
    stored = json.loads((tmp_path / "model.json").read_text())["constants"]
    assert stored["wide"]["offset"] % 8 == 0
    assert stored["bytes_"]["offset"] == stored["wide"]["offset"] + 16


def test_odd_names_of_files_give_plain_names_of_side_files(tmp_path: Path) -> None:
    """Everything that can be saved can be loaded: invalid characters are replaced in the side file's name."""
    for name in ("a:b c.json", "back\\slash", "it's", "\u6f22.json", "*.json"):
        with_constants(c=b"value").save(tmp_path / name, inline_limit=0)
        assert IR.load(tmp_path / name).constants["c"].raw == b"value"


def test_the_side_file_of_the_replaced_file_goes_away(tmp_path: Path) -> None:
    """And no other: not that of another graph, nor one that the replaced file does not refer to."""
    path = tmp_path / "model.json"
    with_constants(c=b"first").save(path, inline_limit=0)
    (first,) = side_files(tmp_path)
    stray = tmp_path / "model.json.constants-0123456789ab.safetensors"
    stray.write_bytes(b"")
    with_constants(c=b"other").save(tmp_path / "other.json", inline_limit=0)
    with_constants(c=b"second").save(path, inline_limit=0)
    assert not first.exists()
    assert stray.exists()
    assert IR.load(tmp_path / "other.json").constants["c"].raw == b"other"
    assert IR.load(path).constants["c"].raw == b"second"


@pytest.mark.parametrize("name", ["model.json", "model.json.gz"])
def test_a_renamed_graph_keeps_its_side_file(tmp_path: Path, name: str) -> None:
    """The side file keeps its name, so saves under the old name of the graph must leave it alone."""
    path = tmp_path / name
    with_constants(c=b"first").save(path, inline_limit=0)
    path.rename(tmp_path / "kept.json")
    for raw in (b"second", b"third"):
        with_constants(c=raw).save(path, inline_limit=0)
    assert IR.load(tmp_path / "kept.json").constants["c"].raw == b"first"
    assert len(os.listdir(tmp_path)) == 4


@pytest.mark.parametrize("name", ["copy.json", "model.json.bak", "copy.json.gz", "copy.bin"])
def test_a_copy_of_a_graph_keeps_its_side_file(tmp_path: Path, name: str) -> None:
    """Until the copy is replaced or removed, too; a file of another kind with the same name in it keeps nothing."""
    path, other = tmp_path / "model.json", tmp_path / name
    with_constants(c=b"first").save(path, inline_limit=0)
    (first,) = side_files(tmp_path)
    content = path.read_bytes()
    other.write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    (tmp_path / "notes.txt").write_text(f"see {first.name}")
    with_constants(c=b"second").save(path, inline_limit=0)
    assert first.exists()
    other.unlink()
    with_constants(c=b"first").save(path, inline_limit=0)
    with_constants(c=b"third").save(path, inline_limit=0)
    assert not first.exists()


def test_a_graph_that_was_loaded_outlives_its_files(tmp_path: Path) -> None:
    """Saving another graph under the same name does not invalidate constants that were not read yet."""
    path = tmp_path / "model.json"
    with_constants(c=b"first").save(path, inline_limit=0)
    loaded = IR.load(path)
    with_constants(c=b"second").save(path, inline_limit=0)
    assert loaded.constants["c"].raw == b"first"


def test_constants_are_read_at_first_use(tmp_path: Path) -> None:
    """Loading, drawing and printing read no constants: corruption is detected when values are used."""
    path = tmp_path / "model.json"
    with_constants(c=b"value").save(path, inline_limit=0)
    (side,) = side_files(tmp_path)
    side.write_bytes(side.read_bytes().replace(b"value", b"ulave"))
    ir = IR.load(path)
    assert "neg_c" in str(ir)
    assert '"c" values ...' in str(ir)
    with pytest.raises(SerializationError, match="is damaged"):
        ir.to_text()
    with pytest.raises(SerializationError, match=r"model\.json\.constants-\w+\.safetensors is damaged"):
        ir.constants["c"].raw  # noqa: B018  # asking is the test


def test_copies_of_a_stored_constant_are_whole(tmp_path: Path) -> None:
    """Deep copies and pickles contain the bytes, and equality compares them."""
    path = tmp_path / "model.json"
    with_constants(c=b"value").save(path, inline_limit=0)
    stored = IR.load(path).constants["c"]
    assert stored == copy.deepcopy(stored) == pickle.loads(pickle.dumps(stored)) == TensorData((5,), "uint8", b"value")
    assert stored != TensorData((5,), "uint8", b"other")
    assert stored != b"value"


@pytest.mark.parametrize(
    ("step", "which"), [("fsync", 1), ("fsync", 2), ("fsync", 3), ("replace", 1), ("fchmod", 1), ("fchmod", 2)]
)
def test_a_pair_that_cannot_be_written_leaves_the_old_pair(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str, which: int
) -> None:
    """Whether either file or their folder fails: the old pair is whole, and nothing is left beside it."""
    path = tmp_path / "model.json"
    with_constants(c=b"first").save(path, inline_limit=0)
    before = sorted(os.listdir(tmp_path))
    done, calls = getattr(os, step), []

    def fail(*arguments: Any) -> Any:
        calls.append(arguments)
        if len(calls) < which:
            return done(*arguments)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, step, fail)
    with pytest.raises(SerializationError, match="No space left on device"):
        with_constants(c=b"second").save(path, inline_limit=0)
    assert sorted(os.listdir(tmp_path)) == before
    assert IR.load(path).constants["c"].raw == b"first"


def place_of(path: Path, **changes: Any) -> str:
    """Return the error of a file whose one constant has a wrong location."""
    document = json.loads(without_digest(path.read_text()))
    document["constants"]["c"].update(changes)
    path.write_text(json.dumps(document))
    with pytest.raises(SerializationError) as caught:
        IR.load(path).constants["c"].raw  # noqa: B018
    return str(caught.value)


@pytest.mark.parametrize(
    "name",
    ["../up.constants-0123456789ab.safetensors", "/etc/passwd", "..", "", "model.safetensors", "a\\b", "C:x", "a/b",
     "\0.constants-0123456789ab.safetensors", "x.constants-0123456789ab.safetensors/"],
)  # fmt: skip
def test_a_side_file_is_a_bare_name(tmp_path: Path, name: str) -> None:
    """Nothing but a name of our own making, beside the file: no folder, no drive, no other file."""
    with_constants(c=b"value").save(tmp_path / "model.json", inline_limit=0)
    assert "is not the name of a side file" in place_of(tmp_path / "model.json", file=name)


@pytest.mark.parametrize("changes", [{"offset": -1}, {"offset": 1 << 62}, {"shape": [1 << 40]}, {"shape": [6]}])
def test_bytes_that_a_side_file_does_not_hold_are_missed_at_load(tmp_path: Path, changes: dict[str, Any]) -> None:
    """A place that ends beyond the file is an error before anything is read."""
    ir = with_constants(c=b"value")
    ir.save(tmp_path / "model.json", inline_limit=0)
    assert "is truncated" in place_of(tmp_path / "model.json", **changes)


@pytest.mark.parametrize(
    ("changes", "words"),
    [({"offset": "8"}, "expected a whole number"), ({"offset": None}, "expected a whole number"),
     ({"file": 3}, "expected a string"), ({"digest": ["x"]}, "expected a string"), ({"digest": "md5:"}, "damaged"),
     ({"base64": ""}, "unknown key 'base64'"), ({"offset": 9}, "damaged"), ({"dtype": "int8"}, "int8")],
)  # fmt: skip
def test_a_place_that_is_none_is_refused(tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    """Every field has its type, and the digest is that of the bytes there."""
    with_constants(c=b"value", d=b"longer value").save(tmp_path / "model.json", inline_limit=0)
    assert words in place_of(tmp_path / "model.json", **changes)


def test_a_side_file_must_be_there_and_plain(tmp_path: Path) -> None:
    """Missing, cut short, a link, a folder, a pipe, too large: an error at load that names the file."""
    path = tmp_path / "model.json"
    with_constants(c=b"value").save(path, inline_limit=0)
    (side,) = side_files(tmp_path)

    def error(limits: Limits = Limits()) -> str:
        with pytest.raises(SerializationError, match=side.name) as caught:
            IR.load(path, limits)
        return str(caught.value)

    content = side.read_bytes()
    side.write_bytes(content[:-1])
    assert "is truncated" in error()
    side.rename(tmp_path / "elsewhere")
    assert "No such file" in error()
    with pytest.raises(MissingFileError):
        IR.load(path)
    side.symlink_to(tmp_path / "elsewhere")
    assert "is a link" in error()
    side.unlink()
    side.mkdir()
    assert "directory" in error() or "plain file" in error()
    side.rmdir()
    os.mkfifo(side)
    assert "is not a plain file" in error()
    side.unlink()
    side.write_bytes(content + bytes(1 << 16))
    assert "bytes are more than 50000" in error(Limits(file_bytes=50000))


def test_text_alone_cannot_give_constants_beside_it(tmp_path: Path) -> None:
    """Text has no folder: the error says what to use instead."""
    with_constants(c=b"value").save(tmp_path / "model.json", inline_limit=0)
    with pytest.raises(
        SerializationError, match=r"in the side file 'model\.json\.constants-.*use IR\.load\(path\)"
    ) as caught:
        IR.from_json((tmp_path / "model.json").read_text())
    assert caught.value.path == "$.constants.c.file"
