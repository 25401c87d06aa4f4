"""`torch-ir diff`: in what two graph files differ, names apart."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from torch_ir.cli.verb import add_verb, load_graph, print_json

if TYPE_CHECKING:
    from torch_ir.cli.verb import Verbs

_EXAMPLES = """
model.json other.json
model.json model.pb --origins
model.json other.json --json
"""


def add_parser(verbs: Verbs) -> None:
    parser = add_verb(verbs, "diff", "say in what two IR files differ, names apart", _EXAMPLES, run)
    parser.add_argument("first", metavar="FIRST", help="an IR file")
    parser.add_argument("second", metavar="SECOND", help="another one")
    parser.add_argument("--origins", action="store_true", help="nodes must come from the same modules and lines too")
    parser.add_argument("--json", action="store_true", help="print the differences as JSON")


def run(arguments: argparse.Namespace) -> int:
    from torch_ir.analysis import diff

    first, second = load_graph(arguments.first), load_graph(arguments.second)
    found = diff(first, second, ignore_origins=not arguments.origins)
    if arguments.json:
        print_json({"is_equal": found.is_equal, "differences": list(found.differences)})
    else:
        print(found)
    return 0 if found.is_equal else 1
