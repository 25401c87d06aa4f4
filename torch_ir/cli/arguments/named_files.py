"""Checks before a command runs: the files it reads exist, and it does not overwrite them or write the wrong format."""

from __future__ import annotations

import argparse
import os

from torch_ir.cli.models.model_kinds import GRAPHS, is_model
from torch_ir.errors import CommandError

_RANDOM = "random"  # not a file
_READ, _WRITTEN = ("file", "model", "against", "target", "weights"), ("output", "picture")
_WRITE_GRAPHS = ("extract", "llm", "memory", "optimize", "quantize", "shard", "split", "train-step")
# of pictures, pages, weights, code and the formats of `convert`: a graph in such a file is a mistake
_OF_OTHERS = (
    ".bin", ".dot", ".gguf", ".html", ".md", ".mlir", ".mmd", ".onnx", ".pdf", ".png", ".pt", ".pt2", ".pth", ".py",
    ".safetensors", ".svg",
)  # fmt: skip
_IN_PLACE = ("optimize", "convert")  # may overwrite the graph they read
_WRITE_FOLDERS = ("golden", "sweep")


def weights_or_random(text: str) -> str | None:
    """Parse `--weights` of a command that draws random weights if no file is given; None for `random`."""
    return None if text == _RANDOM else text


def check_files(arguments: argparse.Namespace) -> None:
    """Raise CommandError for files that a command should not read or write, before it computes anything."""
    given = {name: text for name in (*_READ, *_WRITTEN) if isinstance(text := getattr(arguments, name, None), str)}
    if any(text == "" and name != "against" for name, text in given.items()):  # of `bench`, that is a list of names
        raise CommandError("the name of a file is empty")
    _refuse_overwriting(given, arguments.verb)
    if "output" in given:
        _refuse_output(given["output"], arguments)
    if (weights := given.get("weights", _RANDOM)) != _RANDOM and not os.path.exists(weights):
        raise CommandError(f"no such file: {weights}")


def _refuse_output(output: str, arguments: argparse.Namespace) -> None:
    """Raise CommandError for an output of the wrong kind."""
    is_folder = arguments.verb in _WRITE_FOLDERS or getattr(arguments, "to", None)
    if os.path.isdir(output) and not is_folder:
        raise CommandError(f"{output} is a folder; -o names a file")
    if arguments.verb == "explore" and output.lower().endswith(GRAPHS):
        raise CommandError(f"{output} is the name of a graph file; explore writes a page, such as model.html")
    if arguments.verb in _WRITE_GRAPHS and output.lower().endswith(_OF_OTHERS):
        raise CommandError(
            f"{output} is not a graph file; {arguments.verb} writes .json, .json.gz, .pb or .ir, "
            "and `torch-ir convert`, `draw` or `explore` other formats"
        )


def _refuse_overwriting(given: dict[str, str], verb: str) -> None:
    """Raise CommandError if an output is one of the files that the command reads, except a graph in place."""
    is_in_place = verb in _IN_PLACE and "file" in given and not is_model(given["file"])
    sources = [given[name] for name in _READ if name in given and not (is_in_place and name == "file")]
    for output in (given[name] for name in _WRITTEN if name in given):
        if any(_is_same(output, path) for source in sources for path in (source, source.partition(":")[0])):
            raise CommandError(f"{output} is an input of this command and would be overwritten; write to another file")


def _is_same(one: str, other: str) -> bool:
    try:
        return os.path.samefile(one, other)
    except (OSError, ValueError):  # a file does not exist, or the text is not a file name
        return False
