"""`torch-ir optimize`: optimise a graph and report the savings."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from torch_ir.cli.arguments.graph_argument import add_graph, open_graph
from torch_ir.cli.arguments.named_files import weights_or_random
from torch_ir.cli.progress import show_progress
from torch_ir.cli.verb import add_json, argument, save_graph, show, terminal_width
from torch_ir.cli.verbs.passes import list_all
from torch_ir.errors import CommandError

if TYPE_CHECKING:
    from torch_ir.ir import IR

SUMMARY = "optimise a graph, without weights, and report the savings"
EXAMPLES = """
model.json -o better.json
model.json -o better.json --level full --verify
model.json --level full --verify -i 'ids=i64[2,16]<1000'
net.py:Net --input 1x3x224x224 -o better.json
model.json --explain fold-batch-norm
model.json -o core.json --pass decompose:to=core --pass dead-code
--list
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_graph(
        parser,
        nargs="?",
        dim_help="a value for a symbolic size to verify with, such as batch=4; for a model, its range",
    )
    argument(parser, "-o --output FILE", "where to write the optimised graph (default: report only)")
    argument(
        parser,
        "--level LEVEL",
        "clean (bit-exact), basic (default) or full",
        words=("clean", "basic", "full"),
        default="basic",
    )
    argument(
        parser,
        "--pass NAME[:OPTION=VALUE]...",
        "run this pass instead of a level; repeatable, in order",
        dest="passes",
        default=None,
    )
    argument(
        parser,
        "--explain WORD",
        "list all changes and why rules declined; with a word, only passes, rules or nodes that contain it",
        nargs="?",
        const="",
    )
    argument(parser, "--verify", "run both graphs on random inputs and weights and compare; exit with 1 if they differ")
    argument(
        parser, "-w --weights FILE", "verify with these: .pt, .safetensors (default: `random`)", type=weights_or_random
    )
    argument(parser, "--dtype DTYPE", "verify in this dtype, such as float64 or bfloat16")
    argument(parser, "--list", "list all passes with their options")
    add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    if arguments.list:
        return list_all(arguments)
    if arguments.file is None:
        raise CommandError("no graph given; give an IR file or a model, or --list to see the passes")
    ir = open_graph(arguments, checked=True, of_models=())
    from torch_ir.passes import optimize
    from torch_ir.run import load_weights

    inputs = _inputs(ir, arguments)
    better, report = optimize(
        ir,
        arguments.level,
        passes=arguments.passes,
        verify=any((arguments.verify, arguments.dtype, arguments.weights, inputs is not None)),
        dtype=arguments.dtype,
        inputs=inputs,
        weights=load_weights(arguments.weights) if arguments.weights else None,
        each=True,
        progress=show_progress,
    )
    is_wrong = report.proof is not None and not report.proof.is_valid
    if arguments.output and not is_wrong:
        save_graph(better, arguments.output)
    show(
        arguments,
        report.to_dict,
        lambda: report.text(terminal_width()) if arguments.explain is None else report.explained(arguments.explain),
    )
    if report.proof is not None and is_wrong:
        raise CommandError(f"the optimised graph computes different results and was not written: {report.proof.reason}")
    return 0


def _inputs(ir: IR, arguments: argparse.Namespace) -> list[Any] | None:
    """Return the inputs to verify with, if given; for a model, they were used to capture it."""
    from torch_ir.cli.arguments.input_specs import read_inputs
    from torch_ir.cli.arguments.input_values import graph_inputs
    from torch_ir.cli.models.model_kinds import is_model

    specs, dims = read_inputs(arguments)
    is_given = (specs or dims) and not is_model(arguments.file)
    return graph_inputs(ir, specs, dims, seed=0) if is_given else None
