"""`torch-ir lower`: lower a graph file to the layers of a user-defined target."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Any

from torch_ir.cli.arguments.graph_argument import add_graph, open_graph
from torch_ir.cli.arguments.target_argument import load_target
from torch_ir.cli.progress import show_progress
from torch_ir.cli.verb import add_json, argument, show, terminal_width

if TYPE_CHECKING:
    from torch_ir.targets import Lowered

SUMMARY = "lower an IR file to your target and list what is missing"
EXAMPLES = """
model.json --target mynpu.py:npu
model.json --target mynpu.py:npu -o lowered.json --picture lowered.png
model.json --target mynpu.py:npu -o lowered.pb
model.json --target mynpu.py:npu --decompose --log
net.py:Net --input 1x3x224x224 --target mynpu.py:npu
model.json --target mynpu.py:npu --json --fail-missing
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_graph(parser)
    argument(parser, "-t --target TARGET", "the Target, as file.py:name or package.module:name", required=True)
    argument(parser, "--decompose", "let torch decompose operators without a handler")
    argument(parser, "--log", "print a line per layer")
    add_json(parser)
    argument(parser, "--fail-missing", "exit with 1 if an operator of a run is missing")
    argument(parser, "--picture FILE", "draw the layers, missing ones in red; .html is an interactive page")
    argument(parser, "-o --output FILE", "write the layers: .pb and .binpb as protobuf, else JSON")


def run(arguments: argparse.Namespace) -> int:
    target = load_target(arguments.target)
    ir = open_graph(arguments)
    show_progress(f"lowering {arguments.file} to {target.name}")
    lines: list[str] = []
    lowered = target.lower(ir, arguments.decompose, lines.append if arguments.log else None)
    if arguments.output is not None:
        lowered.save(arguments.output)
    if arguments.picture is not None:
        _draw(lowered, arguments.picture)
    for line in lines:
        print(line, file=sys.stderr if arguments.json else sys.stdout)
    show(arguments, lambda: _summary(lowered), lambda: lowered.report(terminal_width()))
    return 1 if arguments.fail_missing and lowered.work_list else 0


def _draw(lowered: Lowered, path: str) -> None:
    """Write an interactive page for `.html`, else a picture."""
    from torch_ir.draw import render
    from torch_ir.explorer import explore

    once = set(lowered.computed_once)
    missing = [name for name in lowered.placeholders if name not in once]
    if path.endswith(".html"):
        explore(lowered.ir, path, placeholders=missing)
    else:
        render(lowered.ir, path, placeholders=missing, fold=True)


def _summary(lowered: Lowered) -> dict[str, Any]:
    return {
        "target": lowered.target,
        "layers": len(lowered),
        "placeholders": lowered.placeholders,
        "computed_once": lowered.computed_once,
        "work_list": [item.to_dict() for item in lowered.work_list],
        "missing": [row.to_dict() for row in lowered.missing],
    }
