"""A user's model from `MODULE:FACTORY` or `file.py:FACTORY`, and its inputs matched with its arguments."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from torch_ir.cli.inputs import InputSpec
from torch_ir.errors import CommandError, WeightLoadError, did_you_mean

if TYPE_CHECKING:
    from torch import nn


def load_factory(text: str) -> Any:
    """The object that `MODULE:FACTORY` names; its module is imported."""
    place, colon, name = text.rpartition(":")
    if not colon or not place or not name:
        raise CommandError(f"{text!r} does not say which model; write it as package.module:Class or file.py:Class")
    module = _load_file(Path(place)) if place.endswith(".py") else _load_module(place)
    found: Any = module
    for part in name.split("."):
        if not hasattr(found, part):
            known = [word for word in dir(found) if not word.startswith("_")]
            raise CommandError(f"{place} has no {name!r}{did_you_mean(part, known)}")
        found = getattr(found, part)
    return found


def build_model(factory: Any, text: str) -> nn.Module:
    """The model in eval mode: an instance as it is, a class or function called without arguments."""
    from torch import nn

    model = factory if isinstance(factory, nn.Module) else call_factory(factory, text)
    if not isinstance(model, nn.Module):
        raise CommandError(f"{text} did not give an nn.Module, but {model!r:.60}")
    return model.eval()


def call_factory(factory: Any, text: str) -> Any:
    """What a class or function of the user's own gives when it is called without arguments."""
    if not callable(factory):
        raise CommandError(f"{text} is neither a class, nor a function, nor a model, but {factory!r:.60}")
    return _guarded(f"building {text}", factory)


def fill_model(model: nn.Module, path: str) -> None:
    """Put the weights of a file into a model."""
    from torch_ir.run import load_weights

    try:
        model.load_state_dict(load_weights(path))
    except RuntimeError as error:  # torch lists every misfit, one per line
        raise WeightLoadError(f"{path} does not fit {type(model).__name__}: {str(error).partition(':')[2]}") from None


def match_inputs(model: nn.Module, specs: Sequence[InputSpec]) -> inspect.BoundArguments:
    """Specs under the arguments of `forward`: named ones by name, the others in order."""
    signature = inspect.signature(model.forward)
    words = [name for name, p in signature.parameters.items() if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    takes_any = any(p.kind is p.VAR_KEYWORD for p in signature.parameters.values())
    named = {spec.name: spec for spec in specs if spec.name}
    for name in named:
        if name not in words and not takes_any:
            raise CommandError(f"{type(model).__name__}.forward has no argument {name!r}{did_you_mean(name, words)}")
    try:
        return signature.bind(*(spec for spec in specs if not spec.name), **named)
    except TypeError as error:
        usage = ", ".join(words)
        raise CommandError(f"the --input options do not fit {type(model).__name__}.forward({usage}): {error}") from None


def _load_module(name: str) -> ModuleType:
    _look_in(os.getcwd())
    try:
        _guarded(f"importing {name}", lambda: importlib.import_module(name))
    except CommandError as error:
        cause = error.__cause__
        if isinstance(cause, ModuleNotFoundError) and f"{name}.".startswith(f"{cause.name}."):
            raise CommandError(
                f"there is no module {cause.name!r} here; for a file, write {name.replace('.', '/')}.py:..."
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
    """Run the user's code; whatever it raises becomes one sentence with the user's own line."""
    try:
        return action()
    except (Exception, SystemExit) as error:
        reason = error.msg if isinstance(error, SyntaxError) else str(error).partition("\n")[0]
        told = f"{type(error).__name__}: {reason}" if reason else type(error).__name__
        raise CommandError(f"{doing} failed: {told}{_place(error)}") from error


def _place(error: BaseException) -> str:
    """The innermost line of the user's own code, as ` (file:line)`; nothing if the call itself was wrong."""
    if isinstance(error, SyntaxError) and error.filename:
        return f" ({_shown(error.filename)}:{error.lineno})"
    not_theirs = (str(Path(__file__).parent), os.path.dirname(os.__file__), "<")
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if not frame.filename.startswith(not_theirs) and "site-packages" not in frame.filename:
            return f" ({_shown(frame.filename)}:{frame.lineno})"
    return ""


def _shown(filename: str) -> str:
    path = Path(filename)
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else filename
