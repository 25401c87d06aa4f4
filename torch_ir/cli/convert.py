"""`torch-ir convert`: a graph file into the other encoding."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from torch_ir.cli.verb import add_verb, load_graph, save_graph
from torch_ir.errors import CommandError

if TYPE_CHECKING:
    from torch_ir.cli.verb import Verbs

_EXAMPLES = """
model.json -o model.pb
model.pb -o model.json
model.json -o small.json --compact
"""


def add_parser(verbs: Verbs) -> None:
    parser = add_verb(verbs, "convert", "write an IR file as protobuf, or back as JSON", _EXAMPLES, run)
    parser.add_argument("file", metavar="FILE", help="an IR file; .pb and .binpb are protobuf, others are JSON")
    parser.add_argument(
        "-o", "--output", metavar="FILE", required=True, help="the file to write: .pb and .binpb, or .json"
    )
    parser.add_argument("--compact", action="store_true", help="write what repeats only once (JSON)")


def run(arguments: argparse.Namespace) -> int:
    from torch_ir.formats import is_protobuf

    if not is_protobuf(arguments.output) and Path(arguments.output).suffix.lower() != ".json":
        raise CommandError(f"{arguments.output} must end in .pb, .binpb or .json")
    if arguments.compact:
        if is_protobuf(arguments.output):
            raise CommandError("--compact is for JSON files: protobuf says what repeats only once anyway")
        load_graph(arguments.file).save(arguments.output, compact=True)
    else:
        save_graph(load_graph(arguments.file), arguments.output)
    return 0
