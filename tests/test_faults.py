"""Crashes while saving: the old file or the new one remains, and no temporary files.

The sweeps run in processes of their own (`tests/faults`); here are also the disks that are full, the folders that may
not be written to, and the targets that are no plain files.
"""

import errno
import json
import os
import stat
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.faults.kinds import graph
from tests.faults.starving import no_permission, small_disk, small_files
from tests.faults.sweep import LIGHT, measure, sweep
from torch_ir.errors import SerializationError
from torch_ir.ir import IR
from torch_ir.ir.files.atomic_write import hidden_name, write_bytes

ROOT = Path(__file__).parents[1]
pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="the sweeps fork")


# -- sweeps -----------------------------------------------------------------------------------------------------------


def test_a_killed_save_leaves_the_old_pair_or_the_new() -> None:
    """At 25 random moments and before every call of the system; the next save leaves nothing else."""
    (row,) = sweep(["JSON and side file"], 25, 20)
    assert row["wrong"] == []
    assert row["within"] >= 20
    assert row["before"] >= 5
    assert row["steps"] > 30
    assert row["loads"] > 0


@pytest.mark.parametrize(
    ("kind", "other_systems"),
    [("protobuf", False), ("gzip and side file", False), ("golden pack", False), ("JSON and side file", True)],
)
def test_other_files_and_other_systems(kind: str, other_systems: bool) -> None:
    """Also folders, and systems without unnamed files and without exchanging folders."""
    (row,) = sweep([kind], 2, 2, other_systems=other_systems, is_full=False)
    assert row["wrong"] == []
    assert row["steps"] > 5


@pytest.mark.slow
def test_the_full_sweep() -> None:
    """A thousand kills of a pair, hundreds of everything else that the package writes: nothing is ever lost."""
    found = measure()
    *rows, wrong = found.items()
    assert wrong[1] == 0
    for label, figure in rows:
        if label.startswith("kill -9 at random"):
            whole, _, all_of_them = str(figure).split()
            assert whole == all_of_them, label
        else:
            assert int(figure) > 100, label


# -- disks and permissions --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("starve", [small_disk, small_files, no_permission])
def test_a_save_that_gets_no_room_leaves_the_old_file(starve: Callable[[list[str]], dict[str, str] | None]) -> None:
    """A full disk, a file limit and a read-only folder: a one-line error, the old file, no temporary files."""
    said = starve(LIGHT)
    if said is None:
        pytest.skip("mounting a small disk needs user namespaces, which this machine does not give")
    assert said.keys() == set(LIGHT)
    reasons = {errno.ENOSPC, errno.EFBIG, errno.EACCES}
    for sentence in said.values():
        assert "cannot write" in sentence
        assert "\n" not in sentence
        assert sentence.endswith(tuple(map(os.strerror, reasons)))


def test_a_full_device_is_one_sentence() -> None:
    """Output to a device can be truncated, but an error reports it."""
    if not Path("/dev/full").exists():
        pytest.skip("only Linux has /dev/full")
    with pytest.raises(SerializationError, match="cannot write /dev/full: No space left on device"):
        graph(0).save("/dev/full")


# -- targets that are no plain files ----------------------------------------------------------------------------------


def test_saving_through_a_link_replaces_what_it_points_to(tmp_path: Path) -> None:
    """The link is kept; the side file is next to the target, where loading finds it."""
    (tmp_path / "store").mkdir()
    link = tmp_path / "link.json"
    link.symlink_to(tmp_path / "store" / "model.json")
    for version in (0, 1):  # at first the link points to nothing
        graph(version).save(link)
        assert link.is_symlink()
        assert IR.load(link).to_json() == graph(version).to_json()
    assert len(os.listdir(tmp_path / "store")) == 2
    assert os.listdir(tmp_path / "store") != os.listdir(tmp_path)
    link.unlink()
    link.symlink_to(link)
    with pytest.raises(SerializationError, match=r"cannot write .*symbolic link"):
        graph(0).save(link)


def test_a_pipe_is_written_to(tmp_path: Path) -> None:
    """And stays a pipe; with nowhere to lay large constants beside, they are in the text."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    got: list[str] = []
    reader = threading.Thread(target=lambda: got.append(pipe.read_text()))
    reader.start()
    graph(0).save(pipe)
    reader.join()
    assert got == [graph(0).to_json()]
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    assert os.listdir(tmp_path) == ["pipe"]


@pytest.mark.parametrize("way", ["pipe", "file"])
def test_standard_output_is_a_target(tmp_path: Path, way: str) -> None:
    """`-o /dev/stdout` prints, whatever it is; a file that is appended to keeps its content."""
    graph(0).save(tmp_path / "model.json", inline_limit=None)
    command = [sys.executable, "-m", "torch_ir", "info", str(tmp_path / "model.json"), "--json", "-o", "/dev/stdout"]
    log = tmp_path / "log"
    log.write_text("before\n")
    with log.open("a") as file:
        done = subprocess.run(command, stdout=subprocess.PIPE if way == "pipe" else file, cwd=ROOT, check=True)
    text = done.stdout.decode() if way == "pipe" else log.read_text().removeprefix("before\n")
    assert json.loads(text)["model_name"] == "version 0"
    assert sorted(os.listdir(tmp_path)) == ["log", "model.json"]


# -- names ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [b"n" * 255, b"\xff\xfe odd.json", "\u6f22".encode() * 85, b"new\nline"])
def test_any_name_that_a_file_can_have(tmp_path: Path, name: bytes) -> None:
    """The longest name, and bytes that are not text: saved twice, loaded, and one side file for each."""
    path = Path(os.fsdecode(bytes(tmp_path) + b"/" + name))
    for version in (0, 1):
        graph(version).save(path)
        assert IR.load(path).to_json() == graph(version).to_json()
        assert len(os.listdir(tmp_path)) == 2


def test_names_that_are_no_names_are_one_sentence(tmp_path: Path) -> None:
    """Too long, with a zero in it, and a folder."""
    for name, said in (("n" * 256, "File name too long"), ("a\0b", "null byte"), ("", "Is a directory")):
        with pytest.raises(SerializationError, match=f"cannot write .*{said}"):
            graph(0).save(f"{tmp_path}/{name}")
    assert os.listdir(tmp_path) == []


def test_files_with_like_names_have_side_files_of_their_own(tmp_path: Path) -> None:
    """Two graph files never share a side file, so that replacing one leaves the other whole."""
    for name in ("a b.json", "a_b.json"):
        graph(0).save(tmp_path / name)
    graph(1).save(tmp_path / "a b.json")
    assert IR.load(tmp_path / "a_b.json").to_json() == graph(0).to_json()


# -- what is not ours -------------------------------------------------------------------------------------------------


def test_only_what_a_dead_writer_left_is_removed(tmp_path: Path) -> None:
    """Files of a running process, of another target, or with other names are kept."""
    target = tmp_path / "model.pb"
    dead, alive, other = hidden_name(target), hidden_name(target), hidden_name(tmp_path / "other.pb")
    kept = [alive, other, tmp_path / f"{dead.name}.bak", tmp_path / f"{dead.name}0", tmp_path / ".model.pb.tmp"]
    for path in (dead, *kept):
        path.write_bytes(b"begun")
    with locked(alive):
        write_bytes(target, b"new")
    assert sorted(tmp_path.iterdir()) == sorted([target, *kept])


class locked:
    """Hold the lock of a file that is being written."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __enter__(self) -> None:
        import fcntl

        self.file = self.path.open("r+b")
        fcntl.flock(self.file, fcntl.LOCK_EX)

    def __exit__(self, *_: object) -> None:
        self.file.close()


def test_a_new_file_has_ordinary_permissions(tmp_path: Path) -> None:
    """Those that the mask of the process leaves, and those of the old file afterwards; its side file has the same."""
    before = os.umask(0o027)
    try:
        graph(0).save(tmp_path / "model.json")
    finally:
        os.umask(before)
    assert {stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()} == {0o640}
    graph(1).save(tmp_path / "model.json")
    assert {stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()} == {0o640}
