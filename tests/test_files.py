"""Files on disk: written whole or not at all, read within limits, one kind of error."""

import os
import stat
from pathlib import Path

import pytest

from tests.graphs import chain, everything, mlp
from torch_ir import load_ir, save_ir
from torch_ir.errors import SerializationError
from torch_ir.ir import IR, Limits

# -- files ------------------------------------------------------------------------------------------------------------


def test_save_and_load(tmp_path: Path) -> None:
    """The file is the text, in UTF-8; folders are made as needed; the documented functions do the same."""
    path = tmp_path / "deep" / "er" / "model.json"
    ir = everything()
    ir.save(path)
    assert path.read_bytes() == ir.to_json().encode()
    assert IR.load(str(path)).to_json() == ir.to_json()
    save_ir(load_ir(path), tmp_path / "other" / "copy.json")
    assert (tmp_path / "other" / "copy.json").read_bytes() == path.read_bytes()


def test_a_file_that_cannot_be_read_is_a_serialization_error(tmp_path: Path) -> None:
    """Missing, a folder, not UTF-8, with a byte order mark, empty, too large: one kind of error that names the file."""

    def error(name: str, content: bytes | None = None, limits: Limits = Limits()) -> str:
        if content is not None:
            (tmp_path / name).write_bytes(content)
        with pytest.raises(SerializationError) as caught:
            IR.load(tmp_path / name, limits)
        return str(caught.value)

    assert error("none.json").endswith("none.json: No such file or directory")
    assert error("").endswith("Is a directory")
    assert error("latin.json", b'{"a": "\xe9"}').endswith("latin.json is not UTF-8 text (byte 7)")
    assert "BOM" in error("bom.json", b"\xef\xbb\xbf{}")
    assert "Expecting value" in error("empty.json", b"")
    assert error("large.json", b" " * 11, Limits(file_bytes=10)).endswith("11 bytes are more than 10")
    assert "missing" in error("small.json", b"{}        ", Limits(file_bytes=10))


def test_a_file_that_lies_about_its_size_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Devices report no size at all; they are read no further than the limit."""
    (tmp_path / "device").write_bytes(bytes(2000))
    monkeypatch.setattr(os, "fstat", lambda _: os.stat_result((0,) * 10))
    with pytest.raises(SerializationError, match="more than 1000 bytes"):
        IR.load(tmp_path / "device", Limits(file_bytes=1000))


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


@pytest.mark.parametrize("step", ["fsync", "replace", "chmod"])
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
    """The text is made before the file is touched."""
    path = tmp_path / "model.json"
    mlp().save(path)
    broken = mlp()
    broken.nodes[0].attrs["value"] = object()
    with pytest.raises(SerializationError, match="has no spelling in the file"):
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


def test_no_permission_is_a_serialization_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the folder may not be written to, the message says so."""

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("tempfile.mkstemp", refuse)
    with pytest.raises(SerializationError, match=r"cannot write .*model\.json: Permission denied"):
        mlp().save(tmp_path / "model.json")
