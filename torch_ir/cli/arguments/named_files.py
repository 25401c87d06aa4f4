"""Checks before a command runs: the files it reads exist, and it does not overwrite them."""

from __future__ import annotations

import argparse
import os

from torch_ir.cli.models.model_kinds import is_model
from torch_ir.errors import CommandError

_RANDOM = "random"  # not a file
_READ, _WRITTEN = ("file", "model", "against", "target", "weights"), ("output", "picture")
_IN_PLACE = ("optimize", "convert")  # may overwrite the graph they read


def refuse_missing(arguments: argparse.Namespace) -> None:
    """Raise CommandError if the weights file does not exist."""
    weights = getattr(arguments, "weights", None)
    if isinstance(weights, str) and weights != _RANDOM and not os.path.exists(weights):
        raise CommandError(f"no such file: {weights}")


def refuse_overwriting(arguments: argparse.Namespace) -> None:
    """Raise CommandError if an output is one of the files that the command reads, except a graph in place."""
    given = {name: text for name in (*_READ, *_WRITTEN) if isinstance(text := getattr(arguments, name, None), str)}
    if arguments.verb in _IN_PLACE and "file" in given and not is_model(given["file"]):
        del given["file"]
    for output in (given[name] for name in _WRITTEN if name in given):
        for source in (given[name] for name in _READ if name in given):
            if _is_same(output, source) or _is_same(output, source.partition(":")[0]):
                raise CommandError(
                    f"{output} is an input of this command and would be overwritten; write to another file"
                )


def _is_same(one: str, other: str) -> bool:
    try:
        return os.path.samefile(one, other)
    except (OSError, ValueError):  # a file does not exist, or the text is not a file name
        return False
