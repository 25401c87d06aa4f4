"""The commands of docs/first-model.md, run in an empty folder."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from tests.documents import ROOT, commands, read_blocks

PAGE = ROOT / "docs" / "first-model.md"
_LEFT = (".git", ".venv", "site", "reports", "demo_output", "__pycache__", ".*_cache")


def _blocks(language: str) -> list[list[str]]:
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    return [list(block.lines) for block in read_blocks(PAGE.name, lines) if block.language == language]


def _script() -> list[str]:
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    blocks = [block for block in read_blocks(PAGE.name, lines) if block.language == "console"]
    return ["\n".join(command) for block in blocks for _, command, _ in commands(PAGE.name, block)]


def _install(environment: Path, programs: Path | None) -> None:
    """An environment as `make install` leaves it, with the command of this test, forked if possible."""
    folder = environment / "bin"
    folder.mkdir(parents=True)
    activate = (Path(sys.prefix) / "bin" / "activate").read_text(encoding="utf-8")
    (folder / "activate").write_text(activate.replace(sys.prefix, str(environment)), encoding="utf-8")
    (folder / "torch-ir").write_text(f'#!/bin/sh\nexec {programs or Path(sys.executable).parent}/torch-ir "$@"\n')
    (folder / "torch-ir").chmod(0o755)
    (environment / ".installed").touch()


def test_under_ten_commands_lead_from_a_clone_to_a_drawn_and_verified_graph(
    tmp_path: Path, programs: Path | None
) -> None:
    """The clone is a copy of this tree, with the environment of this test instead of a new one."""
    script = _script()
    assert len(script) < 10
    clone, *rest = script
    assert clone.startswith("git clone ")
    copy = tmp_path / clone.split()[-1]
    shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns(*_LEFT), copy_function=shutil.copy2)
    _install(copy / ".venv", programs)
    for name in ("pyproject.toml", "constraints.txt"):  # older than the environment, so that make installs nothing
        os.utime(copy / name, (0, 0))
    (tmp_path / "net.py").write_text("\n".join(_blocks("python")[0]), encoding="utf-8")
    done = subprocess.run(
        ["bash", "-eu"], input="\n".join(rest), cwd=tmp_path, capture_output=True, text=True, timeout=300,
        env={**os.environ, "COLUMNS": "100"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "Verification PASSED" in done.stdout
    assert (tmp_path / "net.png").read_bytes().startswith(b"\x89PNG")
    assert "<html" in (tmp_path / "net.html").read_text(encoding="utf-8")
