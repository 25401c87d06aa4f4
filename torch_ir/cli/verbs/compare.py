"""`torch-ir compare`: find the first node at which another runtime differs from a golden pack."""

from __future__ import annotations

import argparse

from torch_ir.cli.progress import show_progress
from torch_ir.cli.verb import DIFFERENT, IN_PART, add_json, add_tolerances, argument, show
from torch_ir.errors import CommandError

SUMMARY = "compare the dumps of another runtime with a golden pack"
EXAMPLES = """
pack dumps
pack dumps.safetensors --rtol 1e-2 --atol 1e-2
pack dumps.npz --map names.json --json
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    argument(parser, "pack PACK", "a folder that `golden` wrote")
    argument(parser, "dumps DUMPS", "a .safetensors or .npz file, or a folder of these and .npy")
    argument(parser, "--map FILE", "a JSON object that maps names of the runtime to names of the graph")
    add_tolerances(parser, "the pack's")
    add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    from dataclasses import asdict

    from torch_ir.ir.json.json_text import parse_document, read_text

    names = parse_document(read_text(arguments.map)) if arguments.map else {}
    wrong = next((key for key, name in names.items() if not isinstance(name, str)), None)
    if wrong is not None:
        raise CommandError(f"{arguments.map}: {wrong!r} must map to the name of a tensor or node")
    import torch_ir

    show_progress(f"comparing {arguments.dumps} with {arguments.pack}")
    comparison = torch_ir.compare_golden(
        arguments.pack, arguments.dumps, rtol=arguments.rtol, atol=arguments.atol, names=names
    )
    show(arguments, lambda: {"is_equal": comparison.is_equal, **asdict(comparison)}, lambda: comparison)
    return 0 if comparison.is_equal else DIFFERENT if comparison.differing else IN_PART
