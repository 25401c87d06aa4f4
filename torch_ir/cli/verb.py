"""Helpers shared by the verbs of the command line."""

from __future__ import annotations

import argparse
import math
import shlex
import shutil
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any

from torch_ir.cli.models.model_kinds import did_you_mean_file, is_model
from torch_ir.cli.progress import show_progress
from torch_ir.errors import CommandError, MissingFileError, SerializationError, TorchIRError, printable

if TYPE_CHECKING:
    from torch import Tensor

    from torch_ir.cli.parser import Program
    from torch_ir.ir import IR

# listed by name, so that help texts do not import torch; a test compares it with the backends' table
BACKENDS = ("torch", "onednn", "inductor", "onnxruntime", "openvino", "iree", "auto")

# exit statuses of commands that compare; 1 is for errors
DIFFERENT = 3  # the two sides differ
IN_PART = 4  # no difference was found, but not everything could be compared

TEXT = ".ir"  # the suffix of files in the text form


def add_verb(program: Program, name: str, verb: ModuleType, other_names: Sequence[str] = ()) -> None:
    """Add a verb, a module with a SUMMARY, EXAMPLES, `add_arguments` and `run`, which returns the exit status."""
    summary = verb.SUMMARY
    parser = program.verbs.add_parser(
        name, aliases=other_names, help=summary, description=f"{summary[0].upper()}{summary[1:]}."
    )
    shown = [f"  {parser.prog} {example}".rstrip() for example in verb.EXAMPLES[1:-1].split("\n")]
    parser.epilog = "\n".join(["examples:", *shown])
    argument(parser, "-q --quiet", "show no progress and no notes")
    argument(
        parser,
        "--import MODULE...",
        "import your module or file, such as my_ops or my_ops.py, which defines operators; repeatable",
        dest="imports",
    )
    argument(parser, "--limit NAME=N...", "raise a limit on graph files, such as analysis_seconds=600", dest="limits")
    verb.add_arguments(parser)
    parser.set_defaults(run=verb.run)


def argument(
    parser: argparse._ActionsContainer, spec: str, help: str, *, words: Sequence[str] = (), **options: Any
) -> None:
    """Add an argument: `file FILE`, `-o --output FILE`, `--json` (a flag), or `--at NAME...`, which may be repeated.

    `words` are values that shells offer, where the command itself checks the value.
    """
    *names, last = spec.split()
    if last.startswith("-"):
        parser.add_argument(*names, last, help=help, **{"action": "store_true", **options})
        return
    if last.endswith("..."):
        options = {"action": "append", "default": [], **options}
    action = parser.add_argument(*names, metavar=last.removesuffix("..."), help=help, **options)
    action.words = words  # type: ignore[attr-defined]  # read by `torch-ir completion`


def add_inputs(parser: argparse.ArgumentParser, dim_help: str) -> None:
    """Add the options for the inputs of a model."""
    argument(
        parser,
        "-i --input SPEC...",
        "an input: 1x3x224x224, ids=i64[batch,seq], i64[1,8]<100, x=@file.npy, @all.npz, flag=true; repeatable",
    )
    argument(parser, "-d --dim NAME=SIZE...", dim_help)


def add_backend(parser: argparse.ArgumentParser) -> None:
    """Add the options for the back end."""
    text = f"the back end: {', '.join(BACKENDS)} (default: torch)"
    argument(parser, "--backend NAME", text, words=BACKENDS, default="torch")
    add_optimize(parser, "optimise the graph first: clean, basic or full (default: as it is)")


def add_optimize(parser: argparse.ArgumentParser, text: str) -> None:
    """Add the option for the optimisation level."""
    argument(parser, "--level LEVEL", text, choices=("clean", "basic", "full"))


def add_dequantize(parser: argparse.ArgumentParser) -> None:
    """Add `--dequantize` to a verb that captures models with quantised weights."""
    argument(
        parser,
        "--dequantize WHERE",
        "quantised weights: once in the `prologue` (default), or in the `layer` that reads them, in each run",
        choices=("prologue", "layer"),
        default="prologue",
    )


def add_blocks(parser: argparse.ArgumentParser) -> None:
    """Add `--blocks` to a verb that captures models."""
    text = "repeated layers: `inline` (default), or as calls of one `function`"
    argument(parser, "--blocks HOW", text, choices=("inline", "function"), default="inline")


def add_device(parser: argparse._ActionsContainer, text: str) -> None:
    """Add the option for the device of estimated times; `{}` in its help is replaced by what it accepts."""
    accepted = "peak=312TFLOPs,bw=2.0TB/s, a published one such as H100, a device file"
    argument(parser, "--device DEVICE", text.format(accepted))


def add_json(parser: argparse._ActionsContainer) -> None:
    argument(parser, "--json", "print JSON")


def add_seed(parser: argparse.ArgumentParser) -> None:
    argument(parser, "--seed N", "seed of all random numbers (default: 0)", type=int, default=0)


def add_tolerances(parser: argparse.ArgumentParser, default: str) -> None:
    for kind in ("relative", "absolute"):
        argument(parser, f"--{kind[0]}tol X", f"{kind} tolerance (default: {default})", type=float)


def add_sizes(parser: argparse._ActionsContainer, *, with_dim: bool = True) -> None:
    """Add the option for symbolic sizes; `--set` is an older spelling, and sizes for costs of a captured model."""
    if with_dim:
        argument(parser, "-d --dim NAME=SIZE...", "a value for a symbolic size; repeatable")
    argument(parser, "--set NAME=SIZE...", argparse.SUPPRESS)


def add_level(parser: argparse._ActionsContainer) -> None:
    """Add the options for the granularity of a graph."""
    argument(
        parser,
        "--level LEVEL",
        "what a node is: a layer (`module`), a torch `function`, or an operator (`aten`); default: as it is",
        words=("module", "function", "aten"),
    )
    argument(parser, "--leaf CLASS...", "keep calls of this class whole, such as LlamaDecoderLayer; repeatable")


def check_least(arguments: argparse.Namespace, least: int, *names: str) -> None:
    """Raise CommandError for a number that is given, but too small."""
    for name in names:
        if (number := getattr(arguments, name)) is not None and number < least:
            raise CommandError(f"--{name.replace('_', '-')} must be at least {least}, not {number}")


def load_graph(path: str) -> IR:
    """Load a graph file; every error names the file."""
    from torch_ir.formats import is_protobuf, load_protobuf
    from torch_ir.ir import IR
    from torch_ir.ir.checks.work import working

    if is_model(path):
        capture = f"; a model is captured first: torch-ir extract {shlex.quote(path)} -o graph.json"
        raise CommandError(f"{path} is not a graph file{did_you_mean_file(path) or capture}")
    show_progress(f"reading {path}")
    try:
        with working() as work:
            ir = load_protobuf(path, work.limits) if is_protobuf(path) else IR.load(path, work.limits)
            work.admit(ir)
    except MissingFileError as error:
        raise MissingFileError(f"{error}{did_you_mean_file(path)}") from None
    except SerializationError as error:
        if path not in str(error):
            error.file = path
        raise
    except TorchIRError as error:
        raise SerializationError(f"{path}: {error}") from None
    return ir


def load_checked(path: str) -> IR:
    """Load a graph file and check its operators, arguments and shapes; needs torch."""
    ir = load_graph(path)
    show_progress(f"checking {path} against torch's operators")
    from torch_ir.safety import validate_ir

    try:
        validate_ir(ir)
    except SerializationError as error:
        error.file = path
        raise
    return ir


def save_graph(ir: IR, path: str) -> None:
    """Write a graph to a file in the encoding of its suffix."""
    from torch_ir.formats import is_protobuf, save_protobuf
    from torch_ir.ir.files.atomic_write import write_bytes

    show_progress(f"writing {path}")
    if is_protobuf(path):
        save_protobuf(ir, path)
    elif path.lower().endswith(TEXT):
        write_bytes(path, ir.to_text().encode())
    else:
        ir.save(path)


def terminal_width() -> int | None:
    """Return the width of the terminal; None if stdout is not a terminal."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def show(arguments: argparse.Namespace, record: Callable[[], Any], text: Callable[[], object]) -> None:
    """Print a result: its record with `--json`, else its text."""
    print(as_json(record()) if arguments.json else "\n".join(map(printable, str(text()).split("\n"))))


def read_weights(ir: IR, text: str, seed: int = 0) -> dict[str, Tensor]:
    """Load weights from a file, or draw them if the text is `random`."""
    from torch_ir.run import load_weights, random_weights

    return random_weights(ir, seed) if text == "random" else load_weights(text)


def print_json(record: Any) -> None:
    print(as_json(record))


def as_json(record: Any) -> str:
    """Return a record as strict JSON, with non-finite numbers as text."""
    import json

    return json.dumps(_strict(record), indent=2)


def _strict(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _strict(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_strict(item) for item in value]
    return value if not isinstance(value, float) or math.isfinite(value) else str(value)
