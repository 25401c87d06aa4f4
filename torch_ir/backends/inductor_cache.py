"""Keep other users' files out of Inductor: a private cache folder, and safe imports in its helper processes.

By default it loads code from a folder in /tmp with a predictable name, and starts Python such that a `ctypes.py` in the
current folder runs.
"""

from __future__ import annotations

import atexit
import os
import shutil
import sys
import tempfile
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from torch_ir.errors import ExecutionError, SecurityWarning
from torch_ir.ir.files.cache_folder import is_private, private_cache

_FOLDER = "TORCHINDUCTOR_CACHE_DIR"
_lock = threading.RLock()  # the environment is shared by all threads


@contextmanager
def private_inductor() -> Iterator[None]:
    """Set the environment in which Inductor compiles, and restore it."""
    if sys.version_info < (3, 11):
        refuse_shadows(Path.cwd())
    here = os.path.realpath(os.curdir)
    paths = [path for path in sys.path if path and os.path.realpath(path) != here]
    settings = {
        _FOLDER: "",
        "PYTHONSAFEPATH": "1",  # since Python 3.11: the current folder is not searched for modules
        "TORCH_CUSTOM_PYTHONPATH": os.pathsep.join(paths),
    }
    with _lock:
        before = {name: os.environ.get(name) for name in settings}
        settings[_FOLDER] = _cache(before[_FOLDER])  # the first import of Inductor sets the variable, too
        os.environ.update(settings)
        try:
            yield
        finally:
            for name, value in before.items():
                if value is None:
                    os.environ.pop(name, None)
                else:
                    os.environ[name] = value


def refuse_shadows(folder: Path) -> None:
    """Raise ExecutionError if a file in the folder shadows a standard module, for Pythons that would run it."""
    found = sorted(path.name for path in folder.glob("*.py") if path.stem in sys.stdlib_module_names)
    if found:
        raise ExecutionError(
            f"Inductor would import {folder / found[0]} instead of Python's own module; use another working directory"
        )


def _cache(requested: str | None) -> str:
    """Return the requested cache folder if it is private, else torch_ir's own."""
    from torch_ir.ops.torch_internals import default_cache_dir

    if requested == default_cache_dir():  # torch sets the variable to its default
        requested = None
    if requested is not None and (not os.path.lexists(requested) or is_private(Path(requested))):
        return requested
    folder = str(private_cache("inductor") or _temporary())
    if requested is not None:
        warnings.warn(
            f"{_FOLDER} is {requested}, which other users can write to, and code is loaded from there; "
            f"using {folder} instead",
            SecurityWarning,
            stacklevel=3,
        )
    return folder


@cache
def _temporary() -> Path:
    """Return a temporary folder for this process, for users without a private cache."""
    folder = Path(tempfile.mkdtemp(prefix="torch_ir-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder
