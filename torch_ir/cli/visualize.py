"""`torch-ir visualize`: a graph file as a picture."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from torch_ir.cli.verb import add_verb, load_graph

if TYPE_CHECKING:
    from torch_ir.cli.verb import Verbs

_EXAMPLES = """
model.json
model.json -o model.png
model.json --no-weights --max-nodes 0 -o model.svg
model.json -o model.md
"""


def add_parser(verbs: Verbs) -> None:
    parser = add_verb(verbs, "visualize", "draw an IR file", _EXAMPLES, run)
    parser.add_argument("file", metavar="FILE", help="an IR file")
    parser.add_argument(
        "--max-nodes", type=int, default=30, metavar="N", help="draw the first N nodes (default: 30); 0 draws all"
    )
    parser.add_argument("--no-weights", action="store_true", help="leave the weights out")
    parser.add_argument(
        "-o", "--output", metavar="FILE", help=".png and .svg are drawn, .dot is Graphviz text, others are Mermaid text"
    )


def run(arguments: argparse.Namespace) -> int:
    from torch_ir.draw import ir_to_mermaid, render

    ir = load_graph(arguments.file)
    if arguments.output is None:
        print(ir_to_mermaid(ir, arguments.max_nodes, not arguments.no_weights))
    else:
        render(ir, arguments.output, arguments.max_nodes, not arguments.no_weights)
    return 0
