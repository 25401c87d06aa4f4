"""The graph argument of a verb: a file, or a model that is captured on the spot."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING

from torch_ir.cli.models.model_kinds import is_model
from torch_ir.cli.verb import add_inputs, argument, load_checked, load_graph
from torch_ir.errors import CommandError, did_you_mean

if TYPE_CHECKING:
    from torch_ir.ir import IR

MODELS = "net.py:Net, package.module:function, hf:llama, a folder with a config.json, timm:resnet50, model.pt2"
_DIM = "for a model: the range of a named size, such as batch=1..32, or one size; repeatable"
DIM_OR_SIZE = "a value for a symbolic size, such as batch=8; for a model, also its range; repeatable"


def add_graph(parser: argparse.ArgumentParser, *, nargs: str | None = None, dim_help: str = _DIM) -> None:
    """Add the graph argument; for a model, `--input` and `--dim` control its capture."""
    argument(parser, "file GRAPH", f"an IR file, or a model: {MODELS}", nargs=nargs)
    add_inputs(parser, dim_help)


def open_graph(
    arguments: argparse.Namespace, *, checked: bool = False, of_models: Sequence[str] = ("input", "dim")
) -> IR:
    """Return the graph of the argument added by `add_graph`.

    With `checked`, a graph file is checked against torch's operators; the options `of_models` are rejected for files.
    """
    if is_model(arguments.file):
        from torch_ir.cli.arguments.captured_model import capture

        return capture(arguments.file, arguments).ir
    for option in of_models:
        if getattr(arguments, option):
            raise CommandError(f"--{option} controls the capture of a model, but {arguments.file} is already a graph")
    return load_checked(arguments.file) if checked else load_graph(arguments.file)


def open_at_level(arguments: argparse.Namespace, of_models: Sequence[str] = ("input", "dim")) -> IR:
    """Return the graph of `add_graph` at the granularity of `add_level`."""
    ir = open_graph(arguments, of_models=of_models)
    if getattr(arguments, "against", None) is None:
        check_leaf(arguments.leaf, ir)
    return _at_level(ir, arguments)


def open_against(arguments: argparse.Namespace, first: IR) -> IR:
    """Return the graph file of `--against` at the same granularity as the first."""
    second = load_graph(arguments.against)
    check_leaf(arguments.leaf, first, second)
    return _at_level(second, arguments)


def _at_level(ir: IR, arguments: argparse.Namespace) -> IR:
    level = arguments.level or ("module" if arguments.leaf else None)
    return ir if level is None else ir.at_level(level, arguments.leaf)


def check_leaf(leaf: Sequence[str], *graphs: IR) -> None:
    """Raise CommandError for a class of `--leaf` that no module of the graphs has."""
    from torch_ir.ir.regroup.granularity import public_name, short

    bodies = [body for ir in graphs for body in ir.all_graphs()] if leaf else []
    classes = {name for body in bodies for name in body.modules.values()}
    classes |= {node.origin.module_class for body in bodies for node in body.nodes}
    known = {word for name in classes if name for word in (public_name(name), short(name))}
    for name in leaf:
        if public_name(name) not in known:
            nearest = did_you_mean(name, known)
            raise CommandError(f"--leaf: no node comes from a module of class {name!r:.80}{nearest}")


def sizes_of(arguments: argparse.Namespace) -> dict[str, int]:
    """Return the values of symbolic sizes; a model is captured with those of `--dim`."""
    from torch_ir.cli.arguments.size_specs import parse_sizes

    return parse_sizes([*arguments.set, *([] if is_model(arguments.file) else arguments.dim)])


def function_of(ir: IR, name: str | None) -> IR:
    """Return the function that `--function` names, or the graph itself without a name."""
    if name is None:
        return ir
    if name not in ir.functions:
        known = ", ".join(ir.functions) or "none"
        raise CommandError(f"the graph has no function {name!r}; functions: {known}{did_you_mean(name, ir.functions)}")
    return ir.functions[name]
