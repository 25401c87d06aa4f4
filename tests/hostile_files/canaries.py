"""Canaries while a file is read: accessed files, executed code, loaded modules, changed settings."""

import ctypes
import os
import random
import re
import struct
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

SECRET = "the secret of the canary"
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_ACTS = (
    "subprocess.", "socket.", "ctypes.", "shutil.", "tempfile.", "webbrowser.", "urllib.", "pty.", "pickle.",
    "os.system", "os.exec", "os.posix_spawn", "os.spawn", "os.fork", "os.kill", "os.remove", "os.rename", "os.mkdir",
    "os.rmdir", "os.link", "os.symlink", "os.truncate", "os.chmod", "os.chown", "os.chdir", "os.putenv", "os.unsetenv",
    "os.utime",
)  # fmt: skip
_OWN = ("torch_ir", "torch", "tests")  # whose modules may be loaded late
_IN_OPEN = 0x20
_PROGRAM = re.compile(r"def program\([vsize\d, ]*\):\n[\w\s,=().\[\]*+/%-]*|[A-Za-z]\w{2,20}(\[\w+\])?")


class Watch:
    """Audit hook of the interpreter, while enabled."""

    def __init__(self, folder: Path) -> None:
        self.acts: list[str] = []
        self.is_on = False
        self._readable = tuple(map(str, (folder, sys.prefix, sys.base_prefix, Path(__file__).parents[2])))
        sys.addaudithook(self._hear)

    def _hear(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self.is_on:
            return
        if event == "open":
            self._opened(*arguments)
        elif event == "compile" and not self._is_own(*arguments):
            self.acts.append(f"compiled {arguments[0]!r:.60}")
        elif event == "os.fork" and _caller() == "torch_ir.processes.forked_child":
            return
        elif event.startswith(_ACTS) and event != "ctypes.string_at":  # how the bytes of a tensor are read
            self.acts.append(f"{event} {arguments!r:.80}")

    def _is_own(self, source: Any, file: Any) -> bool:
        """Whether code belongs to a module, is only parsed, is a type in a schema, or consists of numbers."""
        text = source.decode() if isinstance(source, bytes) else str(source)
        return str(file).startswith((*self._readable, "<unknown>")) or _PROGRAM.fullmatch(text) is not None

    def _opened(self, path: Any, mode: Any, flags: int) -> None:
        if isinstance(path, int):
            return
        text = os.fsdecode(path)
        if os.path.isdir(text):  # a temporary file without a name, which is gone when it is closed
            return
        if flags & _WRITES:
            self.acts.append(f"wrote {text!r:.80}")
        elif not os.path.abspath(text).startswith(self._readable):
            self.acts.append(f"read {text!r:.80}")


def _caller() -> str:
    """Return the module that caused the audit event."""
    return sys._getframe(2).f_globals["__name__"]


def settings() -> dict[str, Any]:
    """Return the settings that a file must not change; equal before and after."""
    known = torch._C._dispatch_get_all_op_names()
    return {
        "environment": dict(os.environ),
        "folder": os.getcwd(),
        "path of modules": list(sys.path),
        "random numbers": random.getstate(),
        "random numbers of torch": torch.get_rng_state().tolist(),
        "gradients": (torch.is_grad_enabled(), torch.is_inference_mode_enabled()),
        "threads": torch.get_num_threads(),
        "default dtype": torch.get_default_dtype(),
        "operators": len(known),
        "namespaces of operators": sorted(set(vars(torch.ops)) - {name.partition("::")[0] for name in known}),
        "packages": sorted({name.partition(".")[0] for name in sys.modules} - sys.stdlib_module_names - {*_OWN}),
    }


def snapshot(folder: Path) -> dict[str, tuple[int, ...]]:
    """Every file below a folder: its kind, its size and when it was written."""
    found = {}
    for place, folders, files in os.walk(folder):
        for name in (*folders, *files):
            facts = os.lstat(os.path.join(place, name))
            found[os.path.join(place, name)] = (facts.st_mode, facts.st_size, facts.st_mtime_ns)
    return found


@contextmanager
def guarded(folder: Path) -> Iterator[list[str]]:
    """Record the files of a folder that are opened meanwhile, including by native code."""
    library = ctypes.CDLL(None, use_errno=True)
    descriptor = library.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
    library.inotify_add_watch(descriptor, os.fsencode(folder), _IN_OPEN)
    touched: list[str] = []
    try:
        yield touched
    finally:
        try:
            data = os.read(descriptor, 1 << 16)
        except BlockingIOError:
            data = b""
        while data:
            length = struct.unpack_from("iIII", data)[3]
            touched.append(data[16 : 16 + length].rstrip(b"\0").decode() or folder.name)
            data = data[16 + length :]
        os.close(descriptor)
