"""What every verb of the command line has in common."""

from __future__ import annotations

import argparse
import math
import shutil
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from torch_ir.cli.progress import show_progress
from torch_ir.errors import SerializationError, TorchIRError

if TYPE_CHECKING:
    from torch_ir.cli.parser import Parser
    from torch_ir.cli.parser import Verbs as Verbs
    from torch_ir.ir import IR

# by name, so that no help text imports torch; a test holds it against the table itself
BACKENDS = ("torch", "onednn", "inductor", "onnxruntime", "openvino", "iree", "auto")

TEXT = ".ir"  # the suffix of files in the text form


def add_verb(
    verbs: Verbs,
    name: str,
    summary: str,
    examples: str,
    run: Callable[[argparse.Namespace], int],
    other_names: Sequence[str] = (),
) -> Parser:
    """A verb whose help ends in examples; `run` gets the parsed arguments and returns the exit status."""
    parser = verbs.add_parser(
        name, aliases=other_names, help=summary, description=f"{summary[0].upper()}{summary[1:]}."
    )
    shown = [f"  {parser.prog} {example}".rstrip() for example in examples[1:-1].split("\n")]
    parser.epilog = "\n".join(["examples:", *shown])
    parser.add_argument("-q", "--quiet", action="store_true", help="show no progress and no notes")
    parser.set_defaults(run=run)
    return parser


def add_inputs(parser: argparse.ArgumentParser, dim_help: str) -> None:
    """The options that say what a model is fed."""
    parser.add_argument(
        "-i",
        "--input",
        action="append",
        default=[],
        metavar="SPEC",
        help="an input: 1x3x224x224, ids=i64[batch,seq], i64[1,8]<100, x=@file.npy, @all.npz, flag=true; repeatable",
    )
    parser.add_argument("-d", "--dim", action="append", default=[], metavar="NAME=SIZE", help=dim_help)


def add_backend(parser: argparse.ArgumentParser) -> None:
    """The options that say what computes a graph."""
    parser.add_argument(
        "--backend",
        default="torch",
        metavar="NAME",
        help=f"what computes it: {', '.join(BACKENDS)} (default: torch)",
    )
    add_optimize(parser, "optimise the graph first: clean, basic or full (default: as it is)")


def add_optimize(parser: argparse.ArgumentParser, text: str) -> None:
    """The option that says how far a graph is optimised before it runs."""
    parser.add_argument("--level", choices=("clean", "basic", "full"), metavar="LEVEL", help=text)


def add_level(parser: argparse._ActionsContainer) -> None:
    """The options that say at which granularity a graph is seen."""
    parser.add_argument(
        "--level",
        metavar="LEVEL",
        help="what a node is: a layer (`module`), a torch `function`, or an operator (`aten`); default: as it is",
    )
    parser.add_argument(
        "--leaf",
        action="append",
        default=[],
        metavar="CLASS",
        help="keep calls of this class whole, such as LlamaDecoderLayer; repeatable",
    )


def load_at_level(arguments: argparse.Namespace) -> IR:
    """The graph in a file, at the granularity that `add_level` was told."""
    return at_level(load_graph(arguments.file), arguments)


def at_level(ir: IR, arguments: argparse.Namespace) -> IR:
    """A graph at the granularity that `add_level` was told."""
    level = arguments.level or ("module" if arguments.leaf else None)
    return ir if level is None else ir.at_level(level, arguments.leaf)


def load_graph(path: str) -> IR:
    """The graph in a file; every error names the file."""
    from torch_ir.formats import is_protobuf, load_protobuf
    from torch_ir.ir import IR

    show_progress(f"reading {path}")
    try:
        return load_protobuf(path) if is_protobuf(path) else IR.load(path)
    except SerializationError as error:
        if path not in str(error):
            error.file = path
        raise
    except TorchIRError as error:
        raise SerializationError(f"{path}: {error}") from None


def load_checked(path: str) -> IR:
    """The graph in a file, its operators, arguments and shapes checked; this needs torch."""
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
    """Write a graph to a file; its suffix says how."""
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
    """How wide a table may be: as the terminal is, or as it likes where none shows it."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def print_json(record: Any) -> None:
    """A record as strict JSON, with what is not finite as text."""
    print(as_json(record))


def as_json(record: Any) -> str:
    """The text that `print_json` prints."""
    import json

    return json.dumps(_strict(record), indent=2)


def _strict(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _strict(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_strict(item) for item in value]
    return value if not isinstance(value, float) or math.isfinite(value) else str(value)
