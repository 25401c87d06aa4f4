"""Capture a model named on the command line with the given inputs, or with the model's own defaults."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch_ir.cli.arguments.dynamic_sizes import choose_sizes, dynamic_shapes, map_specs
from torch_ir.cli.arguments.input_specs import parse_inputs, read_inputs
from torch_ir.cli.progress import show_progress
from torch_ir.errors import printable

if TYPE_CHECKING:
    from torch.export import ExportedProgram

    from torch_ir.ir import IR

# options that apply to capture, and their defaults
_OF_CAPTURE: dict[str, Any] = {
    "input": [], "dim": [], "capture": "auto", "explore": None, "blocks": "inline", "crosscheck": False,
}  # fmt: skip


@dataclass
class Captured:
    """A graph, the seconds its capture took, and notes for the user."""

    ir: IR
    seconds: float
    notes: list[str] = field(default_factory=list)


def capture(text: str, arguments: argparse.Namespace, **options: Any) -> Captured:
    """Capture a model with the inputs of `--input` and `--dim`; `options` are passed to extract_ir."""
    specs, dims = read_inputs(arguments)
    import torch_ir
    from torch_ir.cli.arguments.input_files import read_files
    from torch_ir.cli.arguments.input_values import meta_value
    from torch_ir.cli.models.arguments import match_inputs
    from torch_ir.cli.models.defaults import default_inputs
    from torch_ir.cli.models.find import find_model

    show_progress(f"building {text}")
    source = find_model(text, own_only=getattr(arguments, "own_only", False))
    start = time.perf_counter()
    if source.program is not None:
        return _converted(text, source.program, arguments, options)
    notes = []
    with torch_ir.meta_init():
        model = source.build()
    if not specs and (texts := default_inputs(model)):
        specs = parse_inputs(texts)
        notes.append(f"no --input given; using {' and '.join(texts)}")
        _print_notes(notes, arguments)
    specs = read_files(specs)
    sizes = choose_sizes(specs, dims)
    bound = match_inputs(model, specs)
    shapes = dynamic_shapes(bound, dims)
    for name, value in bound.arguments.items():
        bound.arguments[name] = map_specs(value, lambda spec: meta_value(spec, sizes))
    show_progress(f"capturing {type(model).__name__}")
    ir = torch_ir.extract_ir(model, bound.args, kwargs=bound.kwargs, strict=False, dynamic_shapes=shapes, **options)
    return Captured(ir, time.perf_counter() - start, notes)


def _print_notes(notes: Sequence[str], arguments: argparse.Namespace) -> None:
    """Print each note as one line on stderr, unless `--quiet` is set."""
    if not arguments.quiet:
        for note in notes:
            print(printable(f"torch-ir: note: {note}"), file=sys.stderr)


def _converted(text: str, program: ExportedProgram, arguments: argparse.Namespace, options: dict[str, Any]) -> Captured:
    """Convert an exported program, which has its own inputs, to a graph."""
    from torch_ir.capture import convert_exported_program

    start = time.perf_counter()
    ir = convert_exported_program(program, options.get("model_name") or Path(text).stem)
    level, leaf = options.get("level", "aten"), options.get("leaf", ())
    ir = ir.at_level(level, leaf) if level != "aten" or leaf else ir
    ignored = [f"--{name}" for name, usual in _OF_CAPTURE.items() if getattr(arguments, name, usual) != usual]
    notes = [f"{text} was captured when it was exported; {' and '.join(ignored)} had no effect"] if ignored else []
    _print_notes(notes, arguments)
    return Captured(ir, time.perf_counter() - start, notes)
