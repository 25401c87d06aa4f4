"""`torch-ir memory`: plan the memory of a graph: a bank and an offset for every tensor."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from torch_ir.cli.arguments.byte_sizes import parse_bytes
from torch_ir.cli.arguments.graph_argument import DIM_OR_SIZE, add_graph, function_of, open_graph, sizes_of
from torch_ir.cli.progress import show_progress
from torch_ir.cli.verb import add_json, add_sizes, argument, save_graph, show
from torch_ir.errors import CommandError

if TYPE_CHECKING:
    from torch_ir.analysis import Bank, MemoryPlan
    from torch_ir.ir import IR

SUMMARY = "plan the memory of an IR file: an offset in a bank for every tensor"
EXAMPLES = """
model.json
model.json --align 64 --picture plan.svg
model.json --bank sram=1MB --bank dram -o planned.json
model.json --dim batch=8 --reorder -o planned.json
planned.json --check
llm.json --function decode --dim batch=1 --dim past=1024 --json
"""
_ARENA = "arena"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_graph(parser, dim_help=DIM_OR_SIZE)
    add_sizes(parser, with_dim=False)
    argument(
        parser,
        "--bank NAME[=SIZE]...",
        "a memory, the fastest first; what does not fit goes to the next; repeatable (default: one, unlimited)",
    )
    argument(parser, "--align BYTES", "offsets are multiples of this (default: 1)", type=int, default=1)
    argument(parser, "--reorder", "first order the nodes for a lower peak; needs -o")
    argument(parser, "--check", "check the plan in the file against its graph, and show it")
    argument(parser, "--function NAME", "plan a function of the graph instead, such as decode")
    argument(parser, "-o --output FILE", "write the graph with its plan: .json, .json.gz, .pb or .ir")
    argument(parser, "--picture FILE", "draw the plan over time: an .svg file")
    add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    from torch_ir.analysis.memory_plan.plan_text import plan_record, plan_text

    _check(arguments)
    ir = open_graph(arguments, of_models=["input"])
    graph = function_of(ir, arguments.function)
    show_progress(f"planning {arguments.file}")
    plan = _plan_in(graph, arguments.file) if arguments.check else _planned(graph, arguments)
    if arguments.picture:
        from torch_ir.draw import memory_picture
        from torch_ir.ir.files.atomic_write import write_text

        write_text(arguments.picture, memory_picture(plan, graph.model_name))
    if arguments.output:
        graph.extensions[plan.KEY] = plan.to_dict()
        save_graph(ir, arguments.output)
    show(arguments, lambda: plan_record(plan), lambda: plan_text(plan, graph.model_name))
    return 0


def _check(arguments: argparse.Namespace) -> None:
    """Raise CommandError for options that contradict each other."""
    if arguments.check and (arguments.bank or arguments.reorder or arguments.align != 1 or arguments.output):
        raise CommandError("--check shows the plan that the file has; --bank, --align, --reorder and -o make a new one")
    if arguments.reorder and not arguments.output:
        raise CommandError("--reorder plans for another order of the nodes; add -o FILE for the graph in that order")
    if arguments.picture and not arguments.picture.lower().endswith(".svg"):
        raise CommandError(f"{arguments.picture} must end in .svg")


def _plan_in(graph: IR, file: str) -> MemoryPlan:
    from torch_ir.analysis import memory_plan_of

    plan = memory_plan_of(graph)
    if plan is None:
        raise CommandError(f"{file} has no memory plan; make one: torch-ir memory {file} -o FILE")
    return plan


def _planned(graph: IR, arguments: argparse.Namespace) -> MemoryPlan:
    from torch_ir.analysis import plan_memory, schedule

    sizes = sizes_of(arguments)
    if arguments.reorder:
        graph.nodes = list(schedule(graph, sizes).nodes)
    return plan_memory(graph, [_bank(text, arguments.align) for text in arguments.bank or [_ARENA]], sizes)


def _bank(text: str, alignment: int) -> Bank:
    from torch_ir.analysis import Bank

    name, equals, size = text.partition("=")
    return Bank(name.strip(), parse_bytes(size) if equals else None, alignment)
