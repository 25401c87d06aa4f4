"""`torch-ir cost`: FLOPs, bytes, memory and estimated time of a graph."""

from __future__ import annotations

import argparse

from torch_ir.cli.arguments.graph_argument import DIM_OR_SIZE, add_graph, function_of, open_graph, sizes_of
from torch_ir.cli.progress import show_progress
from torch_ir.cli.verb import add_device, add_json, add_sizes, argument, check_least, show, terminal_width

SUMMARY = "report the cost of an IR file: FLOPs, bytes, memory, time"
EXAMPLES = """
model.json
model.json --by op --top 5
model.json --depth 2 --dim batch=8 --dim seq=512
model.json --device 'peak=312TFLOPs,bw=2.0TB/s'
model.json --device H100
model.json --device this --mode compiled
"hf:llama?num_hidden_layers=2" --by op
llm.json --function decode --dim past=1024 --json
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_graph(parser, dim_help=DIM_OR_SIZE)
    parser.add_argument(
        "--by", choices=("module", "op", "node"), default="module", help="what a row is (default: module)"
    )
    argument(parser, "--depth N", "merge deeper modules into their ancestor at this depth", type=int)
    argument(parser, "--each-layer", "show a row per layer, even if layers cost the same")
    argument(parser, "--top N", "show this many rows and the sum of the others", type=int)
    add_sizes(parser, with_dim=False)
    add_device(parser, "estimate times for a device: {}, or `this` machine once calibrated")
    argument(
        parser,
        "--mode MODE",
        "how the graph runs on a calibrated device: eager, executor (default) or compiled",
        words=("eager", "executor", "compiled"),
        default="executor",
    )
    argument(parser, "--function NAME", "report a function of the graph instead, such as decode")
    add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    from torch_ir.analysis import cost_report, find_device

    check_least(arguments, 1, "top")
    check_least(arguments, 0, "depth")
    show_progress(f"counting {arguments.file}")
    report = cost_report(
        function_of(open_graph(arguments, of_models=["input"]), arguments.function),
        arguments.by,
        depth=arguments.depth,
        top=arguments.top,
        sizes=sizes_of(arguments),
        device=arguments.device and find_device(arguments.device),
        mode=arguments.mode,
        fold=not arguments.each_layer,
    )
    show(arguments, report.to_dict, lambda: report.text(terminal_width()))
    return 0
