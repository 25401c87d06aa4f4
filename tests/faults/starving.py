"""Full disks and similar places: each is made in a child process, which reports the error of every kind of save."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from tests.faults.killing import Place, forked
from tests.faults.kinds import KINDS
from torch_ir.errors import SerializationError

_ROOT = Path(__file__).parents[2]
_NOBODY = 65534
_MOUNT = 'mount -t tmpfs -o size=2m none "$1" && shift && exec "$@"'


def small_disk(kinds: list[str]) -> dict[str, str] | None:
    """A disk that is full but for the old file; None where no disk can be mounted."""
    with tempfile.TemporaryDirectory() as room:
        mounted = ["unshare", "-rm", "sh", "-c", _MOUNT, "sh", room]
        try:
            subprocess.run([*mounted, "true"], check=True, capture_output=True)
        except (OSError, subprocess.CalledProcessError):
            return None
        program = [sys.executable, "-m", "tests.faults.starving", room, *kinds]
        done = subprocess.run([*mounted, *program], stdout=subprocess.PIPE, check=True, cwd=_ROOT)
    said: dict[str, str] = json.loads(done.stdout)
    return said


def small_files(kinds: list[str]) -> dict[str, str]:
    """A limit on the size of files."""
    return _in_child(kinds, lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (10, resource.RLIM_INFINITY)))


def no_permission(kinds: list[str]) -> dict[str, str]:
    """A folder that may be read, but not written to."""
    return _in_child(kinds, lambda: os.setuid(_NOBODY) if os.getuid() == 0 else None)


def _in_child(kinds: list[str], starve: Callable[[], None]) -> dict[str, str]:
    """Return the error of each kind of save in a child without space, after the old file exists."""
    said = {}
    for name in kinds:
        with tempfile.TemporaryDirectory() as room:
            os.chmod(room, 0o755)
            place = Place(KINDS[name], Path(room))
            place.clear()
            place.kind.save(place.target, 0)
            place.folder.chmod(0o555)
            out, into = os.pipe()

            def work(place: Place = place, into: int = into) -> None:
                starve()
                os.write(into, _refused(place).encode())

            child = forked(work)
            os.close(into)
            with os.fdopen(out) as file:
                said[name] = file.read()
            os.waitpid(child, 0)
            place.folder.chmod(0o755)
            _check_untouched(place)
    return said


def _refused(place: Place) -> str:
    """Return the error of a save that must fail."""
    try:
        place.kind.save(place.target, 1)
    except SerializationError as error:
        return str(error).strip()
    return "it was saved"


def _check_untouched(place: Place) -> None:
    assert place.kind.read(place.target) == 0
    assert place.listed() == place.expected[0], place.listed()


def _on_small_disk(room: Path, kinds: list[str]) -> dict[str, str]:
    """Fill the disk after the old file is there; when there is room again, it can be saved."""
    said = {}
    for name in kinds:
        place = Place(KINDS[name], room)
        place.clear()
        place.kind.save(place.target, 0)
        filler = room / "filler"
        with open(filler, "wb", buffering=0) as file:
            try:
                while True:
                    file.write(bytes(4096))
            except OSError:
                pass
        said[name] = _refused(place)
        _check_untouched(place)
        filler.unlink()
        assert place.wrong_after_save(1) == ""
    return said


if __name__ == "__main__":
    print(json.dumps(_on_small_disk(Path(sys.argv[1]), sys.argv[2:])))
