"""Untrusted files in a folder: links, pipes, devices and folders under the names that torch_ir uses."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy
import pytest
import torch

from torch_ir import IR, OpNode, TensorMeta, TorchIRError
from torch_ir.cli.dispatch import main
from torch_ir.errors import CommandError, SerializationError
from torch_ir.golden.dumps import open_dumps
from torch_ir.golden.folders import restore
from torch_ir.golden.pack import INDEX, read_pack
from torch_ir.ir import Param, TensorData
from torch_ir.ir.files.atomic_write import hidden_name
from torch_ir.ir.files.regular_file import IrregularFileError, TooLargeError, open_regular, read_regular
from torch_ir.run.stored import read_header
from torch_ir.sweep.summary import SUMMARY, write_summary
from torch_ir.sweep.sweep_folder import GRAPHS, ROWS, SETTINGS, Journal

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="Windows has no pipes and devices among its files")
_SECONDS = 20


@pytest.fixture(autouse=True)
def _no_hang() -> Iterator[None]:
    """Fail a test that waits for a pipe or reads an endless device."""

    def stop(*_: object) -> None:
        raise AssertionError(f"still waiting after {_SECONDS} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(_SECONDS)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def _link(path: Path) -> None:
    path.symlink_to(path.parent.parent / "secret")


def _dangling(path: Path) -> None:
    path.symlink_to(path.parent.parent / "new")


def _device(path: Path) -> None:
    path.symlink_to("/dev/zero")


def _folder(path: Path) -> None:
    path.mkdir()
    (path / "inside").write_text("x")


_PLANTS: list[Callable[[Path], None]] = [_link, _dangling, _device, os.mkfifo, _folder]
_every_plant = pytest.mark.parametrize("plant", _PLANTS, ids=["link", "dangling", "device", "pipe", "folder"])


@pytest.fixture
def unpacked(tmp_path: Path) -> Iterator[Path]:
    """A folder to plant files in; nothing beside it may change."""
    (tmp_path / "secret").write_text("private")
    folder = tmp_path / "unpacked"
    folder.mkdir()
    yield folder
    assert (tmp_path / "secret").read_text() == "private"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["secret", "unpacked"]


def _large_graph(seed: int = 0) -> IR:
    """A graph with a constant in a side file."""
    values = torch.full((20000,), float(seed))
    data = TensorData((20000,), "float32", values.numpy().tobytes())
    x, y = TensorMeta("x", (20000,), "float32"), TensorMeta("y", (20000,), "float32")
    held = TensorMeta("c", (20000,), "float32", param=Param(("c",), kind="constant", data=data))
    return IR([OpNode("y", "aten.add.Tensor", [x, held], [y], {"alpha": 1})], [x], [y], params=[held])


@_every_plant
def test_the_note_of_a_save(plant: Callable[[Path], None], unpacked: Path) -> None:
    """A save whose note has a planted name writes its pair and nothing else."""
    target = unpacked / "model.json"
    plant(hidden_name(target, "note"))
    _large_graph().save(target)
    assert len(IR.load(target).nodes) == 1
    _large_graph(1).save(target)
    assert len(list(unpacked.iterdir())) == 2  # the graph and its side file; the old ones are gone


@_every_plant
def test_a_note_as_the_command_line_meets_it(plant: Callable[[Path], None], unpacked: Path) -> None:
    """`convert` in an unpacked folder neither waits nor writes elsewhere."""
    source, target = unpacked / "model.json", unpacked / "out.json"
    _large_graph().save(source)
    plant(hidden_name(target, "note"))
    assert main(["convert", str(source), "-o", str(target)]) == 0


def test_a_long_note_is_not_read(unpacked: Path) -> None:
    """A note of a terabyte is removed unread."""
    target = unpacked / "model.json"
    note = hidden_name(target, "note")
    note.touch()
    os.truncate(note, 1 << 40)
    _large_graph().save(target)
    assert not note.exists()


@_every_plant
def test_the_page_beside_a_graph(
    plant: Callable[[Path], None], unpacked: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`explore` without -o derives the name of its page, and rejects anything but a regular file there."""
    source = unpacked / "model.json"
    _large_graph().save(source)
    plant(unpacked / "model.html")
    assert main(["explore", str(source)]) == 1
    told = capsys.readouterr().err
    assert "model.html: it is" in told
    assert len(told.splitlines()) == 1


@_every_plant
@pytest.mark.parametrize("name", [ROWS, SETTINGS])
def test_the_files_of_a_sweep(name: str, plant: Callable[[Path], None], unpacked: Path) -> None:
    """A sweep is not resumed in a folder whose rows or settings are not regular files."""
    plant(unpacked / name)
    with pytest.raises((CommandError, SerializationError), match=name):
        Journal(unpacked, {"seed": "0"})


def test_graphs_of_a_sweep_in_a_linked_folder(unpacked: Path) -> None:
    """A sweep writes no graph through a link."""
    (unpacked / GRAPHS).symlink_to(unpacked.parent, target_is_directory=True)
    with pytest.raises(CommandError, match="is a link"):
        Journal(unpacked, {})


@_every_plant
def test_the_summary_of_a_sweep(plant: Callable[[Path], None], unpacked: Path) -> None:
    """The summary is not written through a link or into a pipe."""
    plant(unpacked / SUMMARY)
    with pytest.raises(SerializationError, match=SUMMARY):
        write_summary([], unpacked)


@_every_plant
def test_the_index_of_a_pack(plant: Callable[[Path], None], unpacked: Path) -> None:
    """The index of a golden pack is a plain file in its folder."""
    plant(unpacked / INDEX)
    with pytest.raises(SerializationError, match=r"is a link|plain file|Is a directory"):
        read_pack(unpacked)


def test_a_pack_is_not_restored_from_a_link(unpacked: Path) -> None:
    """Leftovers of a dead process are folders; a planted link of that name is not touched."""
    pack = unpacked / "pack"
    hidden_name(pack, "before").symlink_to(unpacked.parent, target_is_directory=True)
    restore(pack)
    assert not os.path.lexists(pack)


@_every_plant
@pytest.mark.parametrize("suffix", [".npy", ".npz", ".safetensors"])
def test_a_folder_of_dumps(suffix: str, plant: Callable[[Path], None], unpacked: Path) -> None:
    """Every file in a folder of dumps is a plain file."""
    numpy.save(unpacked / "a.npy", numpy.zeros(2))
    plant(unpacked / f"b{suffix}")
    with pytest.raises(SerializationError, match=r"is a link|plain file|Is a directory"), open_dumps(unpacked):
        pass


@_every_plant
def test_a_checkpoint(plant: Callable[[Path], None], unpacked: Path) -> None:
    """The header of a checkpoint is read of a plain file only; its name may be a link, as in a hub's cache."""
    path = unpacked / "w.safetensors"
    plant(path)
    with pytest.raises(TorchIRError, match=r"w\.safetensors"):
        read_header(path)


@_every_plant
def test_open_regular(plant: Callable[[Path], None], unpacked: Path) -> None:
    """Nothing but a regular file is opened, at once and without its name being followed."""
    plant(unpacked / "f")
    with pytest.raises((IrregularFileError, IsADirectoryError)):
        open_regular(unpacked / "f", follow=False)


def test_read_regular_is_bounded(unpacked: Path) -> None:
    """A file above the limit is rejected unread, by its size."""
    (unpacked / "f").write_bytes(b"12345")
    assert read_regular(unpacked / "f", 5, follow=False) == b"12345"
    with pytest.raises(TooLargeError, match="5 bytes are more than 4"):
        read_regular(unpacked / "f", 4, follow=False)
