"""`torch-ir verify`: compare a graph file with the original model by running both."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from torch_ir.cli.arguments.graph_argument import MODELS
from torch_ir.cli.progress import show_progress
from torch_ir.cli.verb import (
    DIFFERENT,
    IN_PART,
    add_inputs,
    add_json,
    add_seed,
    add_tolerances,
    argument,
    load_checked,
    show,
)
from torch_ir.errors import CommandError

if TYPE_CHECKING:
    from torch_ir.cli.models.source import Source
    from torch_ir.ir import IR
    from torch_ir.verify import BlockReport, VerificationReport

SUMMARY = "compare an IR file with the original model by running both"
EXAMPLES = """
model.json net.py:Net
model.json net.py:Net --weights net.pt --input x=@image.npy
model.json my_package.models:make --dim batch=4 --rtol 1e-4 --json
model.json net.py:Net --localise
model.json net.py:Net --weights checkpoint/ --blockwise
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    argument(parser, "file FILE", "an IR file")
    argument(parser, "model MODEL", f"the original model: {MODELS}")
    argument(parser, "-w --weights FILE", ".pt or .safetensors (default: the model's own)")
    add_inputs(parser, "a number for a symbolic size, such as batch=4; repeatable")
    add_seed(parser)
    add_tolerances(parser, "by dtype")
    argument(parser, "--no-probe", "run on these inputs only, not on variations of them")
    argument(parser, "--localise", "find the first node that differs")
    argument(parser, "--blockwise", "compare block by block, reading weights as needed: for models larger than memory")
    argument(parser, "--block CLASS...", "the class of a block; repeatable")
    argument(parser, "--unique", "compare only one of several equal blocks")
    add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    from torch_ir.cli.arguments.input_specs import read_inputs

    specs, dims = read_inputs(arguments)
    _check(arguments)
    import torch

    from torch_ir.cli.arguments.input_values import graph_call
    from torch_ir.cli.models.find import find_model
    from torch_ir.verify import VerificationReport

    ir = load_checked(arguments.file)
    args, kwargs = graph_call(ir, specs, dims, arguments.seed)
    source = find_model(arguments.model)
    torch.manual_seed(arguments.seed)
    compare = _compare_blocks if arguments.blockwise else _compare_whole
    show_progress(f"comparing {arguments.file} with {arguments.model}")
    report = compare(arguments, ir, source, test_inputs=args, test_kwargs=kwargs)
    show(arguments, lambda: _as_record(report), lambda: report)
    if isinstance(report, VerificationReport):
        is_complete, was_compared = not report.not_compared, bool(report.trials)
    else:
        is_complete, was_compared = True, bool(report.checks)
    if report.is_valid:
        return 0 if is_complete else IN_PART
    return DIFFERENT if was_compared else IN_PART


def _as_record(report: VerificationReport | BlockReport) -> dict[str, Any]:
    verdict = getattr(report, "verdict", "PASSED" if report.is_valid else "FAILED")
    return {"verdict": verdict, **asdict(report)}


def _check(arguments: argparse.Namespace) -> None:
    """Raise CommandError for options that cannot be combined."""
    if arguments.blockwise and not arguments.weights:
        raise CommandError("--blockwise reads weights from files; add --weights")
    if arguments.blockwise and (arguments.localise or arguments.no_probe):
        raise CommandError("--blockwise cannot be combined with --localise or --no-probe")
    if not arguments.blockwise and (arguments.block or arguments.unique):
        raise CommandError("--block and --unique need --blockwise")


def _compare_whole(arguments: argparse.Namespace, ir: IR, source: Source, **call: Any) -> VerificationReport:
    import torch_ir
    from torch_ir.cli.models.model_weights import build_filled

    model = build_filled(source, arguments.weights)
    _, report = torch_ir.verify_ir_with_state_dict(
        ir=ir,
        state_dict=model.state_dict(),
        original_model=model,
        **call,
        rtol=arguments.rtol,
        atol=arguments.atol,
        probe=not arguments.no_probe,
        localise=arguments.localise,
    )
    return report


def _compare_blocks(arguments: argparse.Namespace, ir: IR, source: Source, **call: Any) -> BlockReport:
    import torch_ir

    if source.program is not None:
        raise CommandError(
            f"--blockwise builds the model without weights, but {source.text} contains them; leave it out"
        )
    with torch_ir.meta_init():
        model = source.build()
    _, report = torch_ir.verify_blocks(
        ir=ir,
        weights=arguments.weights,
        original_model=model,
        **call,
        rtol=arguments.rtol,
        atol=arguments.atol,
        blocks=arguments.block,
        unique=arguments.unique,
    )
    return report
