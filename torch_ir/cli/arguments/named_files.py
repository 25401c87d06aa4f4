"""Checks before a command runs: the files it reads exist, and it does not overwrite them or write the wrong format."""

from __future__ import annotations

import argparse
import os

from torch_ir.cli.models.model_kinds import is_model
from torch_ir.errors import CommandError

_RANDOM = "random"  # not a file
_READ, _WRITTEN = ("file", "model", "against", "target", "weights"), ("output", "picture")
_WRITE_GRAPHS = ("extract", "llm", "memory", "optimize", "quantize", "shard", "split", "train-step")
# of pictures, pages, weights, code and the formats of `convert`: a graph in such a file is a mistake
_OF_OTHERS = (
    ".bin", ".dot", ".gguf", ".html", ".md", ".mlir", ".mmd", ".onnx", ".pdf", ".png", ".pt", ".pt2", ".pth", ".py",
    ".safetensors", ".svg",
)  # fmt: skip
_GRAPHS = (".json", ".json.gz", ".pb", ".binpb", ".ir")
_IN_PLACE = ("optimize", "convert")  # may overwrite the graph they read


def refuse_missing(arguments: argparse.Namespace) -> None:
    """Raise CommandError if the weights file does not exist."""
    weights = getattr(arguments, "weights", None)
    if isinstance(weights, str) and weights != _RANDOM and not os.path.exists(weights):
        raise CommandError(f"no such file: {weights}")


def refuse_other_formats(arguments: argparse.Namespace) -> None:
    """Raise CommandError if a command that writes a graph or a page is told to write a file of another format."""
    output = getattr(arguments, "output", None)
    if not isinstance(output, str):
        return
    if arguments.verb == "explore" and output.lower().endswith(_GRAPHS):
        raise CommandError(f"{output} is the name of a graph file; explore writes a page, such as model.html")
    if arguments.verb in _WRITE_GRAPHS and output.lower().endswith(_OF_OTHERS):
        raise CommandError(
            f"{output} is not a graph file; {arguments.verb} writes .json, .json.gz, .pb or .ir, "
            "and `torch-ir convert`, `draw` or `explore` other formats"
        )


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
