"""A list of models may name only the user's own code, not functions of Python or of an installed package."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from torch_ir.cli.models.opening import open_entry
from torch_ir.cli.models.own_code import is_own, refuse_foreign_name
from torch_ir.errors import CommandError
from torch_ir.sweep import Entry

_MODULE = """
import functools, os, torch
from pathlib import Path
from subprocess import getoutput
from torch.nn import Linear

def make():
    return torch.nn.Linear(2, 2)

made = make()
called = functools.partial(getoutput, "touch ran")
wrapped = functools.partial(functools.partial(make))
"""
_FOREIGN = [
    "subprocess:getoutput?cmd=touch ran",
    "posix:system?command=touch ran",
    "os:system?command=touch ran",
    "torch.hub:load_state_dict_from_url?url=x",
    f"{os.__file__}:system?command=touch ran",
    "OWN:getoutput?cmd=touch ran",
    "OWN:os.system?command=touch ran",
    "OWN:Path.touch?self=ran",
    "OWN:called",
]
_OWN = ["OWN:make", "OWN:made", "OWN:wrapped", "OWN:Linear?in_features=2&out_features=2", "package:make"]


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A file and a package of the user's, in the current folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "package", raising=False)
    (tmp_path / "own_nets.py").write_text(_MODULE)
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").write_text(_MODULE)
    return "own_nets.py"


@pytest.mark.parametrize("name", _FOREIGN)
def test_foreign_code_is_refused(name: str, own: str) -> None:
    """Nothing of it is called, also where own code has imported it."""
    case = open_entry(Entry(name.replace("OWN", own), ("1x2",)))
    for use in (case.extract, case.build):
        with pytest.raises(CommandError, match=r"not your own code.*--allow-code"):
            use()
    assert not Path("ran").exists()


@pytest.mark.parametrize("name", _OWN)
def test_own_code_is_built(name: str, own: str) -> None:
    """Files, packages in the current folder, and classes of modules from anywhere."""
    case = open_entry(Entry(name.replace("OWN", own), ("1x2",)))
    assert len(case.extract().nodes) == 1


def test_allow_code(own: str) -> None:
    """With `allow_code`, a name is called as on the command line."""
    case = open_entry(Entry("subprocess:getoutput?cmd=touch ran", ("1x2",)), allow_code=True)
    with pytest.raises(CommandError, match=r"did not return an nn\.Module"):
        case.extract()
    assert Path("ran").exists()


@pytest.mark.parametrize("name", ["hf:llama?num_hidden_layers=2", "timm:resnet50", "bert", "program.pt2"])
def test_libraries_and_files_are_no_code(name: str) -> None:
    """They are named, not called."""
    refuse_foreign_name(name)


@pytest.mark.parametrize(
    "path",
    ["env/lib/python3.12/site-packages/a/b.py", "usr/lib/python3/dist-packages/a.py", "usr/lib/python3.9/os.py",
     "usr/lib64/python3.13t/os.py", "env/Lib/site-packages/a.py"],
)  # fmt: skip
def test_library_folders(path: str, tmp_path: Path) -> None:
    """A library of any Python is not own code, wherever it is installed."""
    assert not is_own(tmp_path / path)
    assert is_own(tmp_path / "lib" / "pythonic" / "net.py")


def test_a_link_into_a_library_is_not_own(tmp_path: Path) -> None:
    """The location of code is that of the resolved file, not of its name."""
    (tmp_path / "mine.py").symlink_to(os.__file__)
    assert not is_own(tmp_path / "mine.py")
