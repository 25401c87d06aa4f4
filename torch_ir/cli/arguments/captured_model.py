"""Capture a model named on the command line with the given inputs, or with the model's own defaults."""

from __future__ import annotations

import argparse
import copy
import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch_ir.cli.arguments.dynamic_sizes import choose_sizes, dynamic_shapes, map_specs
from torch_ir.cli.arguments.input_specs import InputSpec, parse_inputs, read_inputs
from torch_ir.cli.progress import show_progress, watch_layers
from torch_ir.errors import Cause, CommandError, ExportError, did_you_mean, printable

if TYPE_CHECKING:
    import torch
    from torch import nn
    from torch.export import ExportedProgram

    from torch_ir.ir import IR

# options that apply to capture, and their defaults
_OF_CAPTURE: dict[str, Any] = {
    "input": [], "dim": [], "capture": "auto", "explore": None, "blocks": "inline", "crosscheck": False,
    "real": False, "weights": None, "fixed": [], "weight_layout": None, "dequantize": "prologue",
}  # fmt: skip
SEED = 0  # of the values that a model without given ones is captured on
_SMALL = 250_000_000  # weights that are filled with random numbers without being asked to
_NEEDS_VALUES = frozenset((
    Cause.BRANCH_ON_DATA, Cause.NUMBER_FROM_DATA, Cause.SIZE_FROM_DATA, Cause.UNKNOWN_RESULT, Cause.NUMPY,
    Cause.NO_SHAPE_RULE, Cause.DATA_POINTER, Cause.UNTRACKED_TENSOR, Cause.NO_VALUE,
))  # fmt: skip


# of a model, its positional and keyword inputs, and a function that returns the value of a specification
Extractor = Callable[[Any, Any, Any, Callable[[InputSpec], Any]], Any]


@dataclass
class Captured:
    """A graph, the seconds its capture took, and notes for the user."""

    ir: IR
    seconds: float
    notes: list[str] = field(default_factory=list)


def capture(
    text: str,
    arguments: argparse.Namespace,
    *,
    real: bool = False,
    weights: str | None = None,
    layout: str | None = None,
    dequantize: str = "prologue",
    fixed: Sequence[str] = (),
    extractor: Extractor | None = None,
    further: Sequence[InputSpec] = (),
    **options: Any,
) -> Captured:
    """Capture a model with the inputs of `--input` and `--dim`; `options` are passed to extract_ir.

    `fixed` are the inputs whose values are part of the graph.
    An `extractor` captures it in place of extract_ir, and may ask for the values of `further` specifications.
    A model that needs values to be captured is captured again on real ones: its initial weights or those of a file,
    and random inputs or those of files. With `real` or `weights`, it is captured on these at once.
    """
    specs, dims = read_inputs(arguments)
    show_progress("importing torch")
    import torch

    import torch_ir
    from torch_ir.cli.arguments.input_files import read_files
    from torch_ir.cli.arguments.input_values import meta_value, real_value
    from torch_ir.cli.models.arguments import match_inputs
    from torch_ir.cli.models.defaults import default_inputs
    from torch_ir.cli.models.find import find_model
    from torch_ir.cli.models.model_weights import build_filled

    show_progress(f"building {text}")
    source = find_model(text, own_only=getattr(arguments, "own_only", False))
    start = time.perf_counter()
    if source.program is not None and extractor is not None:
        raise CommandError(f"{text} is an exported program, which has no training mode; pass a model")
    if source.program is not None:
        return _converted(text, source.program, arguments, options)
    notes = []
    with torch_ir.meta_init():
        model = source.build()
    if not specs and (texts := default_inputs(model)):
        specs = parse_inputs(texts)
        notes.append(f"no --input given; using {' and '.join(texts)}")
        _print_notes(notes, arguments)
    specs = [*read_files(specs, nested=True), *(_fixed_spec(text) for text in fixed if "=" in text)]
    sizes = choose_sizes([*specs, *further], dims)
    bound = match_inputs(model, specs)
    shapes = dynamic_shapes(bound, dims)

    def stored(ir: IR) -> IR:
        return _in_layout(ir, model, layout, dequantize)

    def extract(model: nn.Module, value_of: Callable[[InputSpec], Any]) -> IR:
        call = copy.copy(bound)
        call.arguments = {name: map_specs(value, value_of) for name, value in bound.arguments.items()}
        values = {name: _fixed_value(name, call.arguments) for name in (text.partition("=")[0] for text in fixed)}
        show_progress(f"capturing {type(model).__name__}")
        watch_layers(model)
        if extractor is not None:
            return extractor(model, call.args, call.kwargs, value_of)  # type: ignore[no-any-return]  # an IR
        return torch_ir.extract_ir(
            model, call.args, kwargs=call.kwargs, strict=False, dynamic_shapes=shapes, fixed=values, **options
        )

    def extract_real() -> IR:
        torch.manual_seed(SEED)
        generator = torch.Generator().manual_seed(SEED)
        return extract(build_filled(source, weights), lambda spec: real_value(spec, sizes, generator))

    if real or weights is not None:
        return Captured(stored(extract_real()), time.perf_counter() - start, notes)
    try:
        ir = extract(model, lambda spec: meta_value(spec, sizes))
    except ExportError as error:
        if error.cause not in _NEEDS_VALUES or shapes is not None or options.get("capture") == "export":
            raise
        if sum(weight.numel() for weight in model.parameters()) > _SMALL:
            raise ExportError(f"{error}; to capture it on random weights and inputs, use extract --real") from None
        notes.append("the model needs values; captured on its initial weights and random inputs where none are given")
        _print_notes(notes[-1:], arguments)
        ir = extract_real()
    return Captured(stored(ir), time.perf_counter() - start, notes)


def _fixed_spec(text: str) -> InputSpec:
    """Return the input of `--fixed NAME=NUMBERS`."""
    import torch

    name, _, numbers = text.partition("=")
    try:
        return InputSpec(text, name, value=torch.tensor(json.loads(numbers)))
    except (ValueError, TypeError, RuntimeError):
        raise CommandError(f"--fixed {text}: {numbers!r} are not nested numbers, such as [[1,4,4]]") from None


def _fixed_value(name: str, arguments: Mapping[str, Any]) -> torch.Tensor:
    """Return the value of an input that `--fixed` names."""
    import torch

    value = arguments.get(name)
    if isinstance(value, torch.Tensor) and not value.is_meta:
        return value
    nearest = did_you_mean(name, arguments) if name not in arguments else ""
    raise CommandError(f"--fixed {name} needs values: --fixed {name}=[[1,4,4]] or --input {name}=@FILE{nearest}")


def _in_layout(ir: IR, model: nn.Module, layout: str | None, dequantize: str) -> IR:
    """Return a graph that reads weights as asked: by default as the model has them, unless they are quantised."""
    is_transformers = hasattr(model, "config") and hasattr(model, "base_model_prefix")
    if not is_transformers:
        if layout == "checkpoint":
            raise CommandError("--weight-layout checkpoint needs a model of transformers")
        return ir
    from torch_ir.llm import to_checkpoint_layout
    from torch_ir.llm.quantized import quantization_of

    if layout == "model" or (layout is None and quantization_of(model) is None):
        return ir
    return to_checkpoint_layout(ir, model, dequantize=dequantize)


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
