"""`torch-ir quantize`: quantise a graph by a recipe, without weights."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from torch_ir.cli.arguments.graph_argument import add_graph, open_graph
from torch_ir.cli.arguments.sample_inputs import add_samples, samples
from torch_ir.cli.progress import show_progress
from torch_ir.cli.verb import add_json, add_seed, argument, read_weights, save_graph, show
from torch_ir.errors import CommandError

if TYPE_CHECKING:
    from torch_ir.ir import IR
    from torch_ir.quantization.layer_choices import Ranges
    from torch_ir.quantization.recipe import Recipe

SUMMARY = "quantise a graph by a recipe, without weights"
EXAMPLES = """
model.json --recipe int8 -o quantized.json
model.json --recipe int4-g64 --layer lm_head=float --layer '*.mlp.*=int8' -o quantized.json
model.json --recipe recipe.toml --json
model.json --recipe w8a8 --weights model.safetensors --sample @0.npz --sample @1.npz -o quantized.json
model.json --recipe w8a8 --ranges ranges.json -o quantized.json
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_graph(parser, dim_help="a value for a symbolic size of the samples; for a model, its range; repeatable")
    argument(
        parser,
        "--recipe SCHEME|FILE",
        "a scheme for all layers (int8, int4-g64, int4-asym, w8a8, w8a8-dynamic, fp8), or a .toml or .json recipe",
        required=True,
    )
    argument(
        parser,
        "--layer PATTERN=SCHEME...",
        "another scheme, or `float`, for module paths that match; repeatable, before the rules of the recipe",
    )
    argument(parser, "-o --output FILE", "where to write the quantised graph (default: report)")
    argument(parser, "--ranges FILE", "static activations: observed ranges, from --save-ranges")
    argument(parser, "-w --weights FILE", "static activations: weights to observe ranges with")
    add_samples(parser)
    argument(
        parser,
        "--method METHOD",
        "how a range follows from the samples: minmax (default), percentile or mse",
        words=("minmax", "percentile", "mse"),
        default="minmax",
    )
    argument(parser, "--save-ranges FILE", "write the observed ranges as JSON")
    add_seed(parser)
    add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    if bool(arguments.sample) != bool(arguments.weights):
        raise CommandError("observing ranges needs both --weights and --sample")
    if arguments.sample and arguments.ranges:
        raise CommandError("--ranges are observed already; leave out --sample")
    if arguments.save_ranges and not arguments.sample:
        raise CommandError("--save-ranges needs --weights and --sample")
    recipe = recipe_of(arguments)
    ir = open_graph(arguments, checked=True, of_models=())
    from torch_ir.quantization import quantize

    ranges = _ranges(ir, arguments)
    show_progress(f"quantising {arguments.file}")
    quantized, report = quantize(ir, recipe, ranges=ranges)
    if arguments.output:
        save_graph(quantized, arguments.output)
    show(arguments, lambda: {"recipe": recipe.to_dict(), **report.to_dict()}, lambda: report)
    return 0


def recipe_of(arguments: argparse.Namespace) -> Recipe:
    """Return the recipe of `--recipe`, with the rules of `--layer` first."""
    from torch_ir.quantization.recipe import LayerRule, Recipe, Scheme

    is_file = arguments.recipe.endswith((".toml", ".json"))
    recipe = Recipe.load(arguments.recipe) if is_file else Recipe.of(arguments.recipe)
    rules = []
    for text in arguments.layer:
        pattern, equals, scheme = text.rpartition("=")
        if not equals or not pattern:
            raise CommandError(f"--layer {text!r:.60} must be PATTERN=SCHEME, such as 'lm_head=float'")
        rules.append(LayerRule(pattern, Scheme.of(scheme)))
    return Recipe((*rules, *recipe.rules))


def _ranges(ir: IR, arguments: argparse.Namespace) -> Ranges | None:
    """Return the ranges of a file, or observe them on the samples."""
    from torch_ir.quantization.observers import observe_ranges, read_ranges, write_ranges

    if arguments.ranges:
        return read_ranges(arguments.ranges)
    if not arguments.sample:
        return None
    weights = read_weights(ir, arguments.weights, arguments.seed)
    found = observe_ranges(ir, weights, samples(ir, arguments), method=arguments.method, progress=show_progress)
    if arguments.save_ranges:
        write_ranges(arguments.save_ranges, found)
    return found
