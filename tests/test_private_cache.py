"""Compiled code is loaded only from folders that no other user can write to."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from torch_ir.backends.inductor_cache import private_inductor, refuse_shadows
from torch_ir.errors import ExecutionError, SecurityWarning
from torch_ir.ir.files.cache_folder import is_private, private_cache

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="checks POSIX permissions")
_FOLDER = "TORCHINDUCTOR_CACHE_DIR"


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_IR_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv(_FOLDER, raising=False)


def test_a_new_folder_is_private() -> None:
    """Whatever the umask."""
    before = os.umask(0)
    try:
        folder = private_cache("iree")
    finally:
        os.umask(before)
    assert folder is not None
    assert folder.stat().st_mode & 0o777 == 0o700


def test_a_folder_that_was_open_is_closed(tmp_path: Path) -> None:
    """It belongs to this user, and its name cannot be taken over."""
    (tmp_path / "cache" / "iree").mkdir(parents=True)
    (tmp_path / "cache" / "iree").chmod(0o775)
    folder = private_cache("iree")
    assert folder is not None
    assert is_private(folder)


def test_a_link_or_a_shared_folder_is_not_used(tmp_path: Path) -> None:
    """A link leads elsewhere, and in a shared folder any name can be replaced."""
    (tmp_path / "cache").mkdir()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "cache" / "iree").symlink_to(tmp_path / "elsewhere", target_is_directory=True)
    assert private_cache("iree") is None
    (tmp_path / "cache").chmod(0o777)
    assert private_cache("inductor") is None
    (tmp_path / "cache").chmod(0o1777)  # like /tmp: other users cannot rename its files
    assert private_cache("inductor") is not None


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root can give a folder away")
def test_a_folder_of_another_user_is_not_used(tmp_path: Path) -> None:
    """Its owner could write code there."""
    (tmp_path / "cache" / "iree").mkdir(parents=True, mode=0o700)
    os.chown(tmp_path / "cache" / "iree", 65534, 65534)
    assert private_cache("iree") is None


def test_inductor_uses_a_private_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The user's choice is used if it is private; the environment is restored."""
    with private_inductor():
        assert os.environ[_FOLDER] == str(tmp_path / "cache" / "inductor")
        assert os.environ["PYTHONSAFEPATH"] == "1"
    assert _FOLDER not in os.environ
    (tmp_path / "mine").mkdir(mode=0o700)
    monkeypatch.setenv(_FOLDER, str(tmp_path / "mine"))
    with private_inductor():
        assert os.environ[_FOLDER] == str(tmp_path / "mine")
    (tmp_path / "mine").chmod(0o777)
    with pytest.warns(SecurityWarning, match="other users can write to"), private_inductor():
        assert os.environ[_FOLDER] == str(tmp_path / "cache" / "inductor")
    assert os.environ[_FOLDER] == str(tmp_path / "mine")


def test_helpers_of_inductor_do_not_import_from_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process in which Inductor tests compiled code does not import a planted `ctypes.py`."""
    from torch._inductor.cpu_vec_isa import VecISA

    (tmp_path / "ctypes.py").write_text("import pathlib; pathlib.Path('ran').touch()")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend("")
    with private_inductor():
        VecISA._probe_load(VecISA(), "nothing.so")
    assert (tmp_path / "ran").exists() == (sys.version_info < (3, 11))


def test_shadows_are_refused(tmp_path: Path) -> None:
    """Where Python has no such setting, a file that would be run is named."""
    (tmp_path / "net.py").touch()
    refuse_shadows(tmp_path)
    (tmp_path / "ctypes.py").touch()
    with pytest.raises(ExecutionError, match=r"ctypes\.py.*another working directory"):
        refuse_shadows(tmp_path)
