"""`torch-ir plan`: find the best way to divide a graph over devices, and write it as a plan file."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from torch_ir.cli.arguments.byte_sizes import parse_bytes
from torch_ir.cli.arguments.size_specs import parse_sizes
from torch_ir.cli.verb import add_device, add_json, add_verb, load_checked, show, terminal_width

if TYPE_CHECKING:
    from torch_ir.cli.verb import Verbs

_EXAMPLES = """
llama.json --devices 8 --memory 80GB -o plan.json
llama.json --devices 8 --memory 80GB --device peak=990TFLOPs,bw=3.35TB/s --link 450GB/s,2us
deepseek.json --devices 64 --memory 80GB --per-node 8 --between 50GB/s,10us --objective throughput
llm.json --entry decode --dim batch=8 --dim past=4096 --devices 4 --memory 80GB --json
"""


def add_parser(verbs: Verbs) -> None:
    parser = add_verb(verbs, "plan", "find the best way to divide a graph over devices", _EXAMPLES, run)
    parser.add_argument("file", metavar="FILE", help="an IR file")
    parser.add_argument("--devices", type=int, required=True, metavar="N", help="number of devices")
    parser.add_argument("--memory", required=True, metavar="BYTES", help="memory of each device, such as 80GB")
    add_device(parser, "the device for time estimates: {}, or `this`")
    parser.add_argument("--per-node", type=int, metavar="N", help="devices in a node (default: 8)")
    parser.add_argument("--link", metavar="LINK", help="bandwidth and latency within a node (default: 100GB/s,5us)")
    parser.add_argument("--between", metavar="LINK", help="the same between nodes (default: 25GB/s,10us)")
    parser.add_argument(
        "--objective",
        default="latency",
        metavar="NAME",
        help="what to minimise: `latency` of one run (default), or time between runs, for `throughput`",
    )
    parser.add_argument(
        "--capacity",
        type=float,
        metavar="FACTOR",
        help="room for tokens sent to experts, as a multiple of the mean (default: for every routing)",
    )
    parser.add_argument("--entry", metavar="NAME", help="the entry point to plan, such as decode (default: the first)")
    parser.add_argument(
        "-d", "--dim", action="append", default=[], metavar="NAME=SIZE", help="a value for a symbolic size; repeatable"
    )
    parser.add_argument("-o", "--output", metavar="FILE", help="where to write the plan (default: report only)")
    add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    from torch_ir.analysis import Link, find_device
    from torch_ir.planning import Cluster, find_plan

    given: dict[str, tuple[Callable[[Any], Any], Any]] = {
        "device": (find_device, arguments.device),
        "link": (Link.parse, arguments.link),
        "between": (Link.parse, arguments.between),
        "per_node": (int, arguments.per_node),
    }
    chosen = {name: parse(text) for name, (parse, text) in given.items() if text is not None}
    cluster = Cluster(arguments.devices, parse_bytes(arguments.memory), **chosen)
    sizes = parse_sizes(arguments.dim)
    ir = load_checked(arguments.file)
    report = find_plan(
        ir,
        cluster,
        objective=arguments.objective,
        entry=arguments.entry,
        sizes=sizes,
        capacity=arguments.capacity,
    )
    if arguments.output:
        report.best.save(arguments.output)
    show(arguments, report.to_dict, lambda: report.text(terminal_width()))
    return 0
