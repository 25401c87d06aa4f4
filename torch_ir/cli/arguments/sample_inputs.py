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


def samples(ir: IR, arguments: argparse.Namespace, random: int = 0) -> Iterator[list[Any]]:
    """Yield the inputs of the graph for each sample, or so many random ones; inputs that a sample lacks are random."""
    from torch_ir.cli.arguments.input_values import graph_inputs
    from torch_ir.cli.models.model_kinds import is_model

    given = [parse_inputs([text]) for text in arguments.sample]
    specs, dims = read_inputs(arguments)
    if is_model(arguments.file):  # it was captured with these
        specs, dims = [] if given else specs, {}
    for number, sample in enumerate(given or [[]] * random):
        yield graph_inputs(ir, [*sample, *specs], dims, arguments.seed + number)
