"""`torch-ir plan`: find the best way to divide a graph over devices, and write it as a plan file."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

from torch_ir.cli.arguments.byte_sizes import parse_bytes
from torch_ir.cli.arguments.size_specs import parse_sizes
from torch_ir.cli.verb import add_device, add_json, argument, load_checked, show, terminal_width

SUMMARY = "find the best way to divide a graph over devices"
EXAMPLES = """
llama.json --devices 8 --memory 80GB -o plan.json
llama.json --devices 8 --memory 80GB --device peak=990TFLOPs,bw=3.35TB/s --link 450GB/s,2us
deepseek.json --devices 64 --memory 80GB --per-node 8 --between 50GB/s,10us --objective throughput
llm.json --entry decode --dim batch=8 --dim past=4096 --devices 4 --memory 80GB --json
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    argument(parser, "file FILE", "an IR file")
    argument(parser, "--devices N", "number of devices", type=int, required=True)
    argument(parser, "--memory BYTES", "memory of each device, such as 80GB", required=True)
    add_device(parser, "the device for time estimates: {}, or `this`")
    argument(parser, "--per-node N", "devices in a node (default: 8)", type=int)
    argument(parser, "--link LINK", "bandwidth and latency within a node (default: 100GB/s,5us)")
    argument(parser, "--between LINK", "the same between nodes (default: 25GB/s,10us)")
    argument(
        parser,
        "--objective NAME",
        "what to minimise: `latency` of one run (default), or time between runs, for `throughput`",
        words=("latency", "throughput"),
        default="latency",
    )
    argument(
        parser,
        "--capacity FACTOR",
        "room for tokens sent to experts, as a multiple of the mean (default: for every routing)",
        type=float,
    )
    argument(parser, "--entry NAME", "the entry point to plan, such as decode (default: the first)")
    argument(parser, "-d --dim NAME=SIZE...", "a value for a symbolic size; repeatable")
    argument(parser, "-o --output FILE", "where to write the plan (default: report only)")
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
