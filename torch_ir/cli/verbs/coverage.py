"""`torch-ir coverage`: the share of a graph that a target can run, and what it lacks."""

from __future__ import annotations

import argparse

from torch_ir.cli.arguments.graph_argument import DIM_OR_SIZE, add_graph, open_graph
from torch_ir.cli.arguments.target_argument import load_target_or_contract
from torch_ir.cli.progress import show_progress
from torch_ir.cli.verb import add_json, argument, show, terminal_width
from torch_ir.errors import CommandError

SUMMARY = "report how much of an IR file a target can run"
EXAMPLES = """
model.json --target npu.toml
model.json --target npu.toml --dim batch=8 --json
net.py:Net --input 1x3x224x224 --target npu.toml
model.json --target mynpu.py:npu
model.json --target npu.toml --fail-under 95 --by flops
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_graph(parser, dim_help=DIM_OR_SIZE)
    argument(
        parser,
        "-t --target TARGET",
        "the target's contract, a .toml or .json file, or the Target itself, as file.py:name",
        required=True,
    )
    argument(parser, "--no-decompose", "do not try decompositions or import torch")
    argument(parser, "--fail-under PERCENT", "exit with 1 if less is supported", type=float)
    parser.add_argument(
        "--by", choices=("nodes", "flops", "bytes"), default="nodes", help="what --fail-under counts (default: nodes)"
    )
    add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    from torch_ir.cli.arguments.size_specs import parse_sizes
    from torch_ir.cli.models.model_kinds import is_model
    from torch_ir.targets import coverage
    from torch_ir.targets.coverage_text import percent

    target = load_target_or_contract(arguments.target)
    sizes = {} if is_model(arguments.file) else parse_sizes(arguments.dim)  # a model is captured with them
    graph = open_graph(arguments, of_models=["input"])
    show_progress(f"comparing {arguments.file} with {arguments.target}")
    report = coverage(graph, target, sizes=sizes, decompose=not arguments.no_decompose)
    show(arguments, report.to_dict, lambda: report.text(terminal_width()))
    if arguments.fail_under is not None and 100 * report.share(arguments.by) < arguments.fail_under:
        share = percent(report.share(arguments.by))
        raise CommandError(f"{report.target} runs {share} of {arguments.by}, less than {arguments.fail_under:g} %")
    return 0
