"""`torch-ir split`: split a graph into pipeline stages, and report what each stores, receives and sends."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch_ir.cli.arguments.byte_sizes import parse_bytes
from torch_ir.cli.arguments.size_specs import parse_sizes
from torch_ir.cli.verb import add_device, add_json, argument, load_checked, save_graph, show, terminal_width
from torch_ir.errors import CommandError

if TYPE_CHECKING:
    from torch_ir.ir import IR

SUMMARY = "split a graph into pipeline stages"
EXAMPLES = """
llama.json --stages 4 -o pipeline.json
llama.json --memory 80GB -o pipeline.json --parts stages/
rank.json --plan plan.json -o pipeline.json
step.json --stages 10 --micro-batches 20
llama.json --at model.layers.8 --at model.layers.16 -o pipeline.json
llama.json --stages 8 --device peak=990TFLOPs,bw=3.35TB/s --dim batch=8 --json
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    argument(parser, "file FILE", "an IR file")
    argument(parser, "--stages N", "number of stages (default: as few as --memory allows)", type=int)
    argument(parser, "--memory BYTES", "memory limit of a stage, such as 80GB")
    argument(parser, "--plan FILE", "cut where a plan of `torch-ir plan` says")
    argument(parser, "--at NAME...", "the module or node with which the next stage begins; repeatable, in order")
    argument(parser, "--depth N", "nesting depth of the layer lists to cut between (default: 1)", type=int, default=1)
    argument(parser, "--anywhere", "cut between any two nodes")
    add_device(parser, "the device for time estimates: {}, or `this`")
    argument(parser, "-d --dim NAME=SIZE...", "a value for a symbolic size; repeatable")
    argument(parser, "--micro-batches N", "of a training step, for its memory (default: one for each stage)", type=int)
    argument(parser, "-o --output FILE", "where to write the pipeline (default: report only)")
    argument(parser, "--parts FOLDER", "also write each stage as a separate graph")
    add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    from torch_ir.analysis import find_device
    from torch_ir.ir.graph.training_parts import EXTENSION
    from torch_ir.pipeline import pipeline_report, split
    from torch_ir.pipeline.pipeline_parts import is_training_pipeline, stages_of
    from torch_ir.pipeline.stage_report import TYPICAL
    from torch_ir.pipeline.training_memory import training_report

    memory = None if arguments.memory is None else parse_bytes(arguments.memory)
    sizes = parse_sizes(arguments.dim)
    device = TYPICAL if arguments.device is None else find_device(arguments.device)
    if arguments.parts and Path(arguments.parts).is_file():
        raise CommandError(f"{arguments.parts} is a file; --parts names a folder")
    if arguments.parts:
        Path(arguments.parts).mkdir(parents=True, exist_ok=True)  # fail before the work if it cannot be written
    at = arguments.at if arguments.plan is None else _stages(arguments)
    ir = load_checked(arguments.file)
    if arguments.micro_batches is not None and EXTENSION not in ir.extensions:
        raise CommandError("--micro-batches is for training steps, which torch-ir train-step makes")
    pipeline = split(
        ir,
        arguments.stages,
        memory=memory,
        at=at,
        depth=arguments.depth,
        anywhere=arguments.anywhere,
        device=device,
        sizes=sizes,
    )
    if arguments.output:
        save_graph(pipeline, arguments.output)
    if arguments.parts:
        _save_parts(pipeline, Path(arguments.parts))
    report: Any
    if is_training_pipeline(pipeline):
        report = training_report(pipeline, arguments.micro_batches or stages_of(pipeline), device=device)
    else:
        report = pipeline_report(pipeline, device=device, sizes=sizes)
    show(arguments, report.to_dict, lambda: report.text(terminal_width()))
    return 0


def _stages(arguments: argparse.Namespace) -> tuple[str, ...]:
    """Return where the stages of a plan begin."""
    from torch_ir.planning import load_plan

    if arguments.at or arguments.stages is not None or arguments.memory is not None:
        raise CommandError("give either --plan, or --stages, --memory or --at")
    stages = load_plan(arguments.plan).stages
    if not stages:
        raise CommandError(f"{arguments.plan} has one stage: there is nothing to split")
    return stages


def _save_parts(pipeline: IR, folder: Path) -> None:
    from torch_ir.ir.files.atomic_write import plain_target
    from torch_ir.pipeline import stage_of

    for number in range(len(pipeline.nodes)):
        save_graph(stage_of(pipeline, number), str(plain_target(folder / f"stage{number}.json")))
