"""`torch-ir sensitivity`: how far the outputs move if one layer is quantised, and a recipe within a budget."""

from __future__ import annotations

import argparse
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from torch_ir.cli.arguments.byte_sizes import parse_bytes
from torch_ir.cli.arguments.graph_argument import add_graph, open_graph
from torch_ir.cli.arguments.sample_inputs import add_samples, samples
from torch_ir.cli.progress import show_progress
from torch_ir.cli.verb import add_json, add_seed, argument, read_weights, show
from torch_ir.errors import CommandError

if TYPE_CHECKING:
    from torch_ir.ir import IR
    from torch_ir.quantization import Sensitivity

_RANDOM_INPUTS = 2
SUMMARY = "measure how far the outputs move if one layer is quantised; choose a recipe within a budget"
EXAMPLES = """
model.json --weights model.safetensors --sample @0.npz --sample @1.npz
model.json --weights model.safetensors --sample @0.npz --scheme int8 --scheme int4-g64 --json
model.json --weights model.safetensors --sample @0.npz --budget 200MB -o recipe.json
model.json --weights checkpoint/ --sample @0.npz --memory 8GB
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_graph(parser, dim_help="a value for a symbolic size, such as batch=4; for a model, its range; repeatable")
    argument(parser, "-w --weights FILE", ".pt, .safetensors, or the word `random`", required=True)
    add_samples(parser)
    argument(parser, "--scheme SCHEME...", "a scheme to try for each layer; repeatable (default: int8 and int4)")
    argument(parser, "--budget BYTES", "find a recipe whose weights take at most this, such as 200MB")
    argument(parser, "-o --output FILE", "write the recipe of --budget as JSON")
    argument(parser, "--memory BYTES", "memory limit of a run, such as 4GB (default: none)")
    add_seed(parser)
    add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    if arguments.output and not arguments.budget:
        raise CommandError("-o writes the recipe of --budget; add --budget")
    budget = parse_bytes(arguments.budget) if arguments.budget else None
    from torch_ir.ir import Limits

    limits = Limits() if arguments.memory is None else replace(Limits(), memory_bytes=parse_bytes(arguments.memory))
    ir = open_graph(arguments, checked=True, of_models=())
    from torch_ir.quantization import sensitivity
    from torch_ir.run import open_weights
    from torch_ir.run.weight_files import has_pieces

    is_streamed = arguments.weights != "random" and has_pieces(arguments.weights)
    weights = open_weights(arguments.weights) if is_streamed else read_weights(ir, arguments.weights, arguments.seed)
    given = list(samples(ir, arguments, _RANDOM_INPUTS))
    schemes = arguments.scheme or ["int8", "int4"]
    found = sensitivity(ir, weights, given, schemes, limits=limits, progress=show_progress)
    record: dict[str, Any] = {"inputs": "given" if arguments.sample else "random", **found.to_dict()}
    lines = [str(found)]
    if not arguments.sample:
        lines.append("The inputs were random: use --sample for inputs of the model's task.")
    if budget is not None:
        chosen, text = _within(ir, weights, given, found, budget, arguments)
        record["budget"] = chosen
        lines.append(text)
    show(arguments, lambda: record, lambda: "\n".join(lines))
    return 0


def _within(
    ir: IR, weights: Any, given: list[Any], found: Sensitivity, budget: int, arguments: argparse.Namespace
) -> tuple[dict[str, Any], str]:
    """Choose a recipe within a budget, run the graph that it makes, and return the result as a record and as text."""
    from torch_ir.quantization import choose_recipe

    show_progress("running the candidates within the budget")
    chosen = choose_recipe(ir, weights, given, found, budget)
    if arguments.output:
        chosen.recipe.save(arguments.output)
    predicted = found.predicted(chosen.recipe)
    record = {
        "bytes": budget,
        "recipe": chosen.recipe.to_dict(),
        "bytes_after": chosen.report.bytes_after,
        "is_uniform": chosen.is_uniform,
        "predicted_sqnr": predicted,
        "measured": asdict(chosen.movement),
    }
    note = "\none scheme for all layers was better than a mix" if chosen.is_uniform else ""
    return record, f"{chosen.report}\npredicted SQNR {predicted:.2f} dB; measured: {chosen.movement}{note}"
