"""Run the command as a user does: in a pipe, on a terminal, and in failing cases."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from torch_ir.cli import main

ROOT = Path(__file__).parents[1]
ERASE = "\r\x1b[K"


def start(programs: Path | None = None) -> list[str]:
    """The words that start the command; with the fixture `programs`, it is forked."""
    return [sys.executable, "-m", "torch_ir"] if programs is None else [str(programs / "torch-ir")]


def command(
    *arguments: str, folder: Path = ROOT, programs: Path | None = None, **environment: str
) -> subprocess.CompletedProcess[str]:
    """The command with its output in pipes."""
    words = [*start(programs), *arguments]
    return subprocess.run(words, cwd=folder, env={**_environment(words), **environment}, capture_output=True, text=True)


def failure(capsys, *arguments: str) -> str:
    """The one line that a failing command prints."""
    assert main(list(arguments)) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("torch-ir: error: ")
    assert err.count("\n") == 1
    return err.removeprefix("torch-ir: error: ").rstrip("\n")


class Terminal:
    """A program on a terminal of a given width; `text` is everything that it wrote, `screen` the visible part."""

    def __init__(self, *words: str, columns: int = 80, folder: Path = ROOT, **environment: str) -> None:
        import pty

        self._master, slave = pty.openpty()
        shown = {**_environment(words), "TERM": "xterm", "COLUMNS": str(columns), **environment}
        self._process = subprocess.Popen(words, cwd=folder, env=shown, stdin=slave, stdout=slave, stderr=slave)
        os.close(slave)
        self.text = ""

    def wait(self) -> int:
        """Read to the end; the exit status."""
        parts = []
        try:
            while part := os.read(self._master, 1 << 16):
                parts.append(part)
        except OSError:  # how Linux reports that the other end is closed
            pass
        os.close(self._master)
        self.text = b"".join(parts).decode().replace("\r\n", "\n")
        return self._process.wait()

    @property
    def screen(self) -> str:
        return re.sub(rf"[^\n]*{re.escape(ERASE)}", "", self.text)


def _environment(words: Sequence[str]) -> dict[str, str]:
    """Python needs the path of this checkout; a forked program has its modules, and is not forked with other paths."""
    kept = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "COLUMNS", "TERM")}
    return {**kept, "PYTHONPATH": str(ROOT)} if words[0] == sys.executable else kept
