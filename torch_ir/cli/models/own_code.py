"""The code that a list of models may name: the user's own, not functions of Python or of installed packages.

Own code is outside all library folders: those of this interpreter, `site-packages`, `dist-packages` and
`lib/pythonX.Y`. So `nets.py:Net` and packages installed in editable mode are own code; `subprocess:getoutput` is not,
nor is a function that own code imported from there.
"""

from __future__ import annotations

import functools
import importlib.machinery
import os
import re
import sys
import sysconfig
from pathlib import Path
from typing import Any

from torch_ir.cli.models.model_kinds import CODE, PROGRAM, TIMM, is_config
from torch_ir.cli.models.model_settings import split_settings
from torch_ir.errors import CommandError

_LIBRARY = re.compile(r"(^|[/\\])(site-packages|dist-packages|lib(64)?[/\\]python\d[\d.]*t?)([/\\]|$)", re.IGNORECASE)
_ALLOW = "if you trust the list, add --allow-code (and --retry for models that have a row)"


def refuse_foreign_name(text: str) -> None:
    """Raise CommandError for a listed name whose code is not the user's own; nothing is imported."""
    if text.endswith(PROGRAM) or is_config(text) or text.startswith(TIMM):
        return
    name = split_settings(text)[0]
    place, colon, _ = name.rpartition(":")
    if not colon:
        return  # a model type of a library, or an error reported later
    if not is_own(Path(place) if place.endswith(CODE) else _origin(place.partition(".")[0])):
        raise CommandError(f"{name!r} is not your own code, and calling it could do anything; {_ALLOW}")


def refuse_foreign_object(found: Any, text: str) -> None:
    """Raise CommandError for objects that own code merely imported; nn.Module classes are allowed from anywhere."""
    from torch import nn

    while isinstance(found, functools.partial):
        found = found.func
    if isinstance(found, nn.Module) or (isinstance(found, type) and issubclass(found, nn.Module)):
        return
    home = getattr(found, "__module__", None) or type(found).__module__
    file = getattr(sys.modules.get(home), "__file__", None)
    if not is_own(Path(file) if file else None):
        raise CommandError(f"{text!r} is defined in {home}, which is not your own code; {_ALLOW}")


def is_own(path: Path | None) -> bool:
    """Return whether a file or folder of code lies outside all library folders; None is code without a file."""
    if path is None:
        return False
    real = os.path.realpath(path)
    return not _LIBRARY.search(real) and not any(Path(real).is_relative_to(folder) for folder in _libraries())


def _origin(package: str) -> Path | None:
    """Return the location of a package without importing it; None if it has no file."""
    if package in sys.builtin_module_names:
        return None
    spec = importlib.machinery.PathFinder.find_spec(package, [os.getcwd(), *sys.path])
    if spec is None:
        return Path(package)  # importing it will report the error
    places = [spec.origin] if spec.has_location else list(spec.submodule_search_locations or ())
    return Path(places[0]) if places and places[0] else None


@functools.cache
def _libraries() -> tuple[str, ...]:
    paths = sysconfig.get_paths()
    return tuple(os.path.realpath(paths[name]) for name in ("stdlib", "platstdlib", "purelib", "platlib"))
