"""`torch-ir optimize`: a better graph that computes the same, and what was gained."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from torch_ir.cli.verb import add_inputs, add_verb, load_checked, print_json, save_graph, show_progress
from torch_ir.errors import CommandError

if TYPE_CHECKING:
    from torch_ir.cli.verb import Verbs
    from torch_ir.ir import IR

_EXAMPLES = """
model.json -o better.json
model.json -o better.json --level full --verify
model.json --level full --verify -i 'ids=i64[2,16]<1000'
model.json --explain fold-batch-norm
model.json -o core.json --pass decompose:to=core --pass dead-code
--list
"""


def add_parser(verbs: Verbs) -> None:
    parser = add_verb(verbs, "optimize", "improve a graph without weights, and say what that bought", _EXAMPLES, run)
    parser.add_argument("file", metavar="FILE", nargs="?", help="an IR file")
    parser.add_argument(
        "-o", "--output", metavar="FILE", help="where the better graph goes; without it, nothing is kept"
    )
    parser.add_argument(
        "--level", default="basic", metavar="LEVEL", help="clean (bit for bit the same), basic (default) or full"
    )
    parser.add_argument(
        "--pass",
        dest="passes",
        action="append",
        metavar="NAME[:OPTION=VALUE]",
        help="run this pass instead of a level; repeatable, in order",
    )
    parser.add_argument(
        "--explain",
        nargs="?",
        const="",
        metavar="WORD",
        help="list every change, and why rules declined; with a word, only of passes, rules or nodes that hold it",
    )
    parser.add_argument(
        "--verify",
        action="store_true",
        help="run both graphs on random inputs and weights, and compare; status 1 if not",
    )
    parser.add_argument(
        "-w", "--weights", metavar="FILE", help="verify with these: .pt, .safetensors (default: random)"
    )
    parser.add_argument("--dtype", metavar="DTYPE", help="verify in this dtype, such as float64 or bfloat16")
    add_inputs(parser, "a number for a symbolic size, such as batch=4, to verify with; repeatable")
    parser.add_argument("--list", action="store_true", help="list all passes with their options")
    parser.add_argument("--json", action="store_true", help="print the report as JSON")


def run(arguments: argparse.Namespace) -> int:
    from torch_ir.passes import optimize
    from torch_ir.run import load_weights

    if arguments.list:
        return _list()
    if arguments.file is None:
        raise CommandError("which graph? give an IR file, or --list to see the passes")
    ir = load_checked(arguments.file)
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
    show_progress("")
    if arguments.json:
        print_json(report.to_dict())
    else:
        print(report if arguments.explain is None else report.explained(arguments.explain))
    if report.proof is not None and not report.proof.is_valid:
        raise CommandError(f"the better graph computes something else, and is not written: {report.proof.reason}")
    if arguments.output:
        save_graph(better, arguments.output)
    return 0


def _inputs(ir: IR, arguments: argparse.Namespace) -> list[Any] | None:
    """What to verify with, where anything is said about that."""
    from torch_ir.cli.inputs import parse_dims, parse_inputs
    from torch_ir.cli.tensors import graph_inputs

    specs, dims = parse_inputs(arguments.input), parse_dims(arguments.dim)
    return graph_inputs(ir, specs, dims, seed=0) if specs or dims else None


def _list() -> int:
    from torch_ir.passes import list_passes

    for each in list_passes():
        options = ", ".join(f"{name}={value}" for name, value in each.options.items())
        raised = f"  (may raise: {', '.join(each.may_raise)})" if each.may_raise else ""
        print(f"{each.name:24} {each.summary}{f'  [{options}]' if options else ''}{raised}")
    return 0
