"""The client side: a folder of programs, and the server that they connect to."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
_BIN = Path(sys.executable).parent


def _command(name: str) -> list[str]:
    """The installed command, or the package of this checkout where it is not installed."""
    return [str(_BIN / name)] if (_BIN / name).exists() else [sys.executable, "-m", "torch_ir"]


FRESH = {
    **{name: _command(name) for name in ("torch-ir", "pytorch-ir")},
    "python": [sys.executable],
    "torchrun": [sys.executable, "-m", "torch.distributed.run"],
    "page": [sys.executable, str(ROOT / "tests" / "documents.py")],
    "architectures": [sys.executable, "-m", "tests.architectures.sweep"],
}


@contextmanager
def forked_programs() -> Iterator[Path | None]:
    """A folder of the programs of FRESH, forked as long as this lasts; None where nothing can be forked as it must be.

    The server imports torch when the first of them starts, which waits.
    """
    if not hasattr(os, "pidfd_open"):
        yield None
        return
    with tempfile.TemporaryDirectory(prefix="torch_ir-") as name, socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"{name}/socket")
        listener.listen(64)
        _write(Path(name))
        server = subprocess.Popen(
            [sys.executable, "-m", "tests.forking.waiting", str(listener.fileno())],
            cwd=ROOT,
            stdin=subprocess.PIPE,  # whose end is the server's
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,  # messages of libraries on import
            pass_fds=[listener.fileno()],
        )
        listener.close()  # if the server is gone, do not wait for it
        try:
            yield Path(name)
        finally:
            server.communicate()


def _write(folder: Path) -> None:
    source = (Path(__file__).parent / "program.py").read_text(encoding="utf-8")
    for name, fresh in FRESH.items():
        text = source.replace("FRESH: list[str] = []", f"FRESH = {fresh}")
        (folder / name).write_text(f"#!{sys.executable} -IS\n{text}", encoding="utf-8")
        (folder / name).chmod(0o755)
