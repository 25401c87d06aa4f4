"""The samples of a verb: inputs of a graph from files, one sample for each option, read when it is needed."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from torch_ir.cli.arguments.input_specs import parse_inputs, read_inputs
from torch_ir.cli.verb import argument

if TYPE_CHECKING:
    from torch_ir.ir import IR


def add_samples(parser: argparse.ArgumentParser) -> None:
    """Add the option for sample inputs."""
    argument(parser, "--sample SPEC...", "one input of the graph, such as @inputs.npz or x=@image.npy; repeatable")


def samples(ir: IR, arguments: argparse.Namespace) -> Iterator[list[Any]]:
    """Yield the inputs of the graph for each sample; inputs that it does not name are random."""
    from torch_ir.cli.arguments.input_values import graph_inputs
    from torch_ir.cli.models.model_kinds import is_model

    specs, dims = read_inputs(arguments)
    common, sizes = ([], {}) if is_model(arguments.file) else (specs, dims)
    for number, text in enumerate(arguments.sample):
        yield graph_inputs(ir, [*parse_inputs([text]), *common], sizes, arguments.seed + number)


def random_samples(ir: IR, arguments: argparse.Namespace, count: int) -> Iterator[list[Any]]:
    """Yield random inputs of the graph, by `--input` and `--dim` of a file."""
    from torch_ir.cli.arguments.input_values import graph_inputs
    from torch_ir.cli.models.model_kinds import is_model

    specs, dims = read_inputs(arguments)
    common, sizes = (specs, {}) if is_model(arguments.file) else (specs, dims)
    for number in range(count):
        yield graph_inputs(ir, common, sizes, arguments.seed + number)
