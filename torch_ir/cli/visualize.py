"""`torch-ir visualize`: a graph file as a picture."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from torch_ir.cli.verb import add_level, add_verb, load_at_level

if TYPE_CHECKING:
    from torch_ir.cli.verb import Verbs

_EXAMPLES = """
model.json
model.json -o model.png
model.json --no-weights --max-nodes 0 -o model.svg
model.json -o model.md
model.json --level module --fold -o model.png
"""


def add_parser(verbs: Verbs) -> None:
    parser = add_verb(verbs, "visualize", "draw an IR file", _EXAMPLES, run)
    parser.add_argument("file", metavar="FILE", help="an IR file")
    add_level(parser)
    parser.add_argument(
        "--fold", action="store_true", help="draw equal layers that follow each other once, and leave the weights out"
    )
    parser.add_argument(
        "--max-nodes",
        type=int,
        metavar="N",
        help="draw the first N nodes (default: 30, or 300 with --fold); 0 draws all",
    )
    parser.add_argument("--no-weights", action="store_true", help="leave the weights out")
    parser.add_argument(
        "-o", "--output", metavar="FILE", help=".png and .svg are drawn, .dot is Graphviz text, others are Mermaid text"
    )


def run(arguments: argparse.Namespace) -> int:
    from torch_ir.draw.mermaid import to_mermaid
    from torch_ir.draw.render import render
    from torch_ir.draw.scene import build_scene
    from torch_ir.ir.blocks import has_blocks

    ir = load_at_level(arguments)
    max_nodes = ... if arguments.max_nodes is None else arguments.max_nodes
    include_weights = False if arguments.no_weights else None
    is_asked = arguments.level is not None or arguments.leaf
    folding = {"fold": arguments.fold, "open_calls": not is_asked and has_blocks(ir)}
    if arguments.output is None:
        print(to_mermaid(build_scene(ir, max_nodes, include_weights, **folding)))
    else:
        render(ir, arguments.output, max_nodes, include_weights, **folding)
    return 0
