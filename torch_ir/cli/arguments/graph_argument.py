"""The graph that a verb works on: in a file, or captured on the spot from a model that the user names."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING

from torch_ir.cli.models.model_kinds import is_model
from torch_ir.cli.verb import add_inputs, at_level, load_checked, load_graph
from torch_ir.errors import CommandError, did_you_mean

if TYPE_CHECKING:
    from torch_ir.ir import IR

MODELS = "net.py:Net, package.module:function, hf:llama, a folder with a config.json, timm:resnet50, model.pt2"
_DIM = "for a model: the range of a named size, such as batch=1..32, or one size; repeatable"


def add_graph(parser: argparse.ArgumentParser, *, nargs: str | None = None, dim_help: str = _DIM) -> None:
    """The graph to work on; with a model instead of a file, `--input` and `--dim` say how it is captured."""
    parser.add_argument("file", metavar="GRAPH", nargs=nargs, help=f"an IR file, or a model: {MODELS}")
    add_inputs(parser, dim_help)


def open_graph(
    arguments: argparse.Namespace, *, checked: bool = False, of_models: Sequence[str] = ("input", "dim")
) -> IR:
    """The graph that `add_graph` was told.

    One in a file is held against torch's operators if it is to be `checked`; the options `of_models` are refused there.
    """
    if is_model(arguments.file):
        from torch_ir.cli.arguments.captured_model import capture

        return capture(arguments.file, arguments).ir
    for option in of_models:
        if getattr(arguments, option):
            raise CommandError(f"--{option} says how to capture a model, but {arguments.file} is a graph already")
    return load_checked(arguments.file) if checked else load_graph(arguments.file)


def open_at_level(arguments: argparse.Namespace) -> IR:
    """The graph that `add_graph` was told, at the granularity that `add_level` was told."""
    return at_level(open_graph(arguments), arguments)


def function_of(ir: IR, name: str | None) -> IR:
    """The function of a graph that `--function` names; without a name, the graph itself."""
    if name is None:
        return ir
    if name not in ir.functions:
        known = ", ".join(ir.functions) or "none"
        raise CommandError(f"the graph has no function {name!r}{did_you_mean(name, ir.functions)}; it has: {known}")
    return ir.functions[name]
