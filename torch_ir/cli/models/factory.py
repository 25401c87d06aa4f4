"""A user's own model, from `package.module:Class` or `file.py:Class`."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import os
import sys
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from torch_ir.cli.models.model_settings import split_settings
from torch_ir.cli.models.own_code import refuse_foreign_object
from torch_ir.cli.models.source import Source
from torch_ir.errors import CommandError, did_you_mean, listed

if TYPE_CHECKING:
    from torch import nn

_MOST_NAMES = 8


def find_factory(text: str, *, own_only: bool) -> Source:
    """Return the model of the user's class, function or instance; settings after `?` are passed as arguments."""
    place, settings = split_settings(text)
    factory = load_factory(place)
    if own_only:
        refuse_foreign_object(factory, place)
    return Source(text, partial(_build, factory, text, settings))


def load_factory(text: str) -> Any:
    """Import and return the object that `MODULE:FACTORY` names."""
    place, colon, name = text.rpartition(":")
    if not colon or not place or not name:
        raise CommandError(
            f"{text!r} does not name a model; write package.module:Class or file.py:Class{_names_in(Path(text))}"
        )
    if name.endswith(")"):
        raise CommandError(f"{text!r} is a call; write its arguments as settings: {text.partition('(')[0]}?name=value")
    module = _load_file(Path(place)) if place.endswith(".py") else _load_module(place)
    found: Any = module
    for part in name.split("."):
        if not hasattr(found, part):
            known = [word for word in dir(found) if not word.startswith("_")]
            raise CommandError(f"{place} has no {name!r}{did_you_mean(part, known)}")
        found = getattr(found, part)
    return found


def _names_in(path: Path) -> str:
    """Return the classes and functions of a Python file as a hint, without running it; "" if it cannot be parsed."""
    if path.suffix != ".py" or not path.is_file():
        return ""
    try:
        tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError, RecursionError):
        return ""
    kinds = (ast.ClassDef, ast.FunctionDef)
    names = [step.name for step in tree.body if isinstance(step, kinds) and not step.name.startswith("_")]
    return f"; {path} has {listed(names, _MOST_NAMES)}" if names else ""


def import_code(text: str) -> None:
    """Import a module or run a file of the user, which may register operators and executors."""
    if text.endswith(".py"):
        _load_file(Path(text))
    else:
        _load_module(text, "")


def call_factory(factory: Any, text: str, settings: dict[str, Any] | None) -> Any:
    """Call a class or function of the user and return its result."""
    if not callable(factory):
        raise CommandError(f"{text} is neither a class, nor a function, nor a model, but {factory!r:.60}")
    return _guarded(f"building {text}", lambda: factory(**(settings or {})))


def _build(factory: Any, text: str, settings: dict[str, Any]) -> nn.Module:
    from torch import nn

    if isinstance(factory, nn.Module) and settings:
        raise CommandError(f"{text}: this is already a model and takes no settings")
    model = factory if isinstance(factory, nn.Module) else call_factory(factory, text, settings)
    if isinstance(model, tuple) and model and isinstance(model[0], nn.Module):
        raise CommandError(f"{text} returned a tuple; return the model alone, and describe its inputs with --input")
    if not isinstance(model, nn.Module):
        raise CommandError(f"{text} did not return an nn.Module, but {model!r:.60}")
    return model.eval()


def _load_module(name: str, member: str = ":...") -> ModuleType:
    _look_in(os.getcwd())
    try:
        _guarded(f"importing {name}", lambda: importlib.import_module(name))
    except CommandError as error:
        cause = error.__cause__
        if isinstance(cause, ModuleNotFoundError) and f"{name}.".startswith(f"{cause.name}."):
            raise CommandError(
                f"no module named {cause.name!r}; for a file, write {name.replace('.', '/')}.py{member}"
            ) from None
        raise
    return sys.modules[name]


def _load_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise CommandError(f"no such file: {path}")
    _look_in(os.getcwd())
    _look_in(str(path.resolve().parent))
    name = path.stem if path.stem not in sys.modules else f"{path.stem}_file"
    spec = importlib.util.spec_from_file_location(name, path.resolve())
    assert spec is not None  # the name ends in .py
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and inspect look there
    loader = spec.loader
    _guarded(f"running {path}", lambda: loader.exec_module(module))
    return module


def _look_in(folder: str) -> None:
    if folder not in sys.path:
        sys.path.insert(0, folder)


def _guarded(doing: str, action: Callable[[], Any]) -> Any:
    """Run the user's code; turn any exception into one sentence with the user's line."""
    try:
        return action()
    except (Exception, SystemExit) as error:
        reason = error.msg if isinstance(error, SyntaxError) else str(error).partition("\n")[0]
        summary = f"{type(error).__name__}: {reason}" if reason else type(error).__name__
        raise CommandError(f"{doing} failed: {summary}{_place(error)}") from error


def _place(error: BaseException) -> str:
    """Return the innermost line of the user's code as ` (file:line)`, or "" if the call itself was wrong."""
    if isinstance(error, SyntaxError) and error.filename:
        return f" ({_shown(error.filename)}:{error.lineno})"
    foreign = (str(Path(__file__).parent), os.path.dirname(os.__file__), "<")
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if not frame.filename.startswith(foreign) and "site-packages" not in frame.filename:
            return f" ({_shown(frame.filename)}:{frame.lineno})"
    return ""


def _shown(filename: str) -> str:
    path = Path(filename)
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else filename
