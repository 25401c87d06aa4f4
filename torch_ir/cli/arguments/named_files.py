"""The files that a command names, before it begins: those that it reads are there, and are not written over."""

from __future__ import annotations

import argparse
import os

from torch_ir.cli.models.model_kinds import is_model
from torch_ir.errors import CommandError

_RANDOM = "random"  # weights that are in no file
_READ, _WRITTEN = ("file", "model", "against", "target", "weights"), ("output", "picture")
_IN_PLACE = ("optimize", "convert")  # whose graph may become the one that they were given


def refuse_missing(arguments: argparse.Namespace) -> None:
    """Refuse weights that are not there, before anything else is asked for."""
    weights = getattr(arguments, "weights", None)
    if isinstance(weights, str) and weights != _RANDOM and not os.path.exists(weights):
        raise CommandError(f"no such file: {weights}")


def refuse_overwriting(arguments: argparse.Namespace) -> None:
    """Refuse an output that is one of the files that the command reads; a graph may take the place of a graph."""
    given = {name: text for name in (*_READ, *_WRITTEN) if isinstance(text := getattr(arguments, name, None), str)}
    if arguments.verb in _IN_PLACE and "file" in given and not is_model(given["file"]):
        del given["file"]
    for output in (given[name] for name in _WRITTEN if name in given):
        for source in (given[name] for name in _READ if name in given):
            if _is_same(output, source) or _is_same(output, source.partition(":")[0]):
                raise CommandError(f"{output} is read by this command and would be lost; write to another file")


def _is_same(one: str, other: str) -> bool:
    try:
        return os.path.samefile(one, other)
    except (OSError, ValueError):  # one of them is not there, or is no name of a file
        return False
