"""Which code a list of models may name: the user's own, and not any function of Python or of an installed package.

Own code lies in no library folder: not in one of this interpreter, in `site-packages`, `dist-packages` or
`lib/pythonX.Y`. So `nets.py:Net` and a package that is installed editable are own code; `subprocess:getoutput` is not,
nor is a function that own code has imported from there.
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
    """Refuse a name in a list whose code is not the user's own; nothing is imported for it."""
    if text.endswith(PROGRAM) or is_config(text) or text.startswith(TIMM):
        return
    name = split_settings(text)[0]
    place, colon, _ = name.rpartition(":")
    if not colon:
        return  # a model type of a library, or a mistake that is told later
    if not is_own(Path(place) if place.endswith(CODE) else _origin(place.partition(".")[0])):
        raise CommandError(f"{name!r} is not your own code, and calling it could do anything; {_ALLOW}")


def refuse_foreign_object(found: Any, text: str) -> None:
    """Refuse what own code only imported; a class of modules may come from anywhere, as building one is its purpose."""
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
    """Where a package lies, of which nothing is imported; None if it has no file, or there is none."""
    if package in sys.builtin_module_names:
        return None
    spec = importlib.machinery.PathFinder.find_spec(package, [os.getcwd(), *sys.path])
    if spec is None:
        return Path(package)  # that there is none is told when it is imported
    places = [spec.origin] if spec.has_location else list(spec.submodule_search_locations or ())
    return Path(places[0]) if places and places[0] else None


@functools.cache
def _libraries() -> tuple[str, ...]:
    paths = sysconfig.get_paths()
    return tuple(os.path.realpath(paths[name]) for name in ("stdlib", "platstdlib", "purelib", "platlib"))
