"""The entry point: parse, call one verb, turn every mistake into one line and a status."""

from __future__ import annotations

import importlib
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch_ir._version import __version__
from torch_ir.cli.arguments.named_files import refuse_missing, refuse_overwriting
from torch_ir.cli.parser import Program
from torch_ir.cli.progress import progress
from torch_ir.cli.stdout import settle_stdout
from torch_ir.cli.streams import guarded_streams
from torch_ir.cli.termination import TerminatedError, terminable
from torch_ir.errors import (
    CaptureWarning,
    ClosedPipeError,
    GraphError,
    SecurityWarning,
    SerializationError,
    TorchIRError,
    VersionWarning,
    WeightWarning,
    printable,
)

_GROUPS = {
    "capture a model": ("extract", "llm"),
    "look at a graph": ("info", "ops", "draw", "explore", "cost", "diff", "check"),
    "improve it": ("optimize", "passes"),
    "compute with it": ("run", "verify", "golden", "compare", "bench"),
    "hand it on": ("convert", "lower", "coverage", "shard", "split"),
    "many models": ("sweep",),
    "this machine": ("doctor", "completion"),
}
_OTHER_NAMES = {"visualize": "draw"}
_SHOWN_LINES = 4
_READER_LEFT = 141  # as a shell reports a program that SIGPIPE ended
_TERMINATED = 143  # as a shell reports a program that SIGTERM ended
_OURS = (CaptureWarning, SecurityWarning, VersionWarning, WeightWarning)


def main(argv: list[str] | None = None) -> int:
    """Run one command and return its exit status.

    0 done, 1 failed, 2 not understood, 130 interrupted, 141 the reader of stdout has left, 143 terminated.
    """
    program, words = _program(), sys.argv[1:] if argv is None else argv
    with guarded_streams() as stdout:
        try:
            status = _run(program, words)
        except SystemExit:  # help, version, or words that are not understood
            stdout.flush()
            if stdout.error is None:
                raise
            status = 0
        stdout.flush()
        if isinstance(stdout.error, BrokenPipeError):
            return _READER_LEFT
        if stdout.error is not None:
            _say(program, "error", f"cannot write to stdout: {stdout.error.strerror or stdout.error}")
            return status or 1
    return status


def _run(program: str, words: list[str]) -> int:
    """Run one command, with every mistake as one line on stderr; return its exit status."""
    if words[:1] == ["help"]:
        words = [*words[1:2], "--help"]
    parser = build_parser(program, words[0] if words else "")
    arguments, surplus = parser.parse_known_args(words)
    if surplus:
        (parser.verbs.choices[arguments.verb] if arguments.verb else parser).refuse(surplus)
    if arguments.verb is None:
        parser.print_help()
        return 2
    try:
        with (
            terminable(),
            progress(f"{program} {arguments.verb}", quiet=arguments.quiet),
            _warnings_as_lines(program),
        ):
            settle_stdout(arguments)
            refuse_overwriting(arguments)
            refuse_missing(arguments)
            status: int = arguments.run(arguments)
        return status
    except TerminatedError:
        return _TERMINATED
    except KeyboardInterrupt:
        return 130
    except ClosedPipeError:
        return _READER_LEFT
    except TorchIRError as error:
        rule = f" [rule {error.rule}]" if isinstance(error, (GraphError, SerializationError)) and error.rule else ""
        _say(program, "error", f"{error}{rule}")
    except OSError as error:
        place = f": {error.filename}" if error.filename else ""
        _say(program, "error", f"{error.strerror or error}{place}")
    return 1


def _program() -> str:
    """The name under which it was called; both names are installed."""
    return "pytorch-ir" if Path(sys.argv[0]).stem == "pytorch-ir" else "torch-ir"


def build_parser(program: str = "torch-ir", word: str = "") -> Program:
    """The parser of the command that a word names, or of all of them: each is in the file of its name."""
    parser = Program(
        _GROUPS,
        prog=program,
        usage="%(prog)s [-h] [--version] COMMAND ...",
        description="Turn PyTorch models into a small, exact, weight-free IR; look at it, run it, prove it.",
        epilog=f"`{program} help COMMAND` shows the options of a command, with examples.",
    )
    parser.add_argument("--version", action="version", version=f"torch-ir {__version__}")
    word = _OTHER_NAMES.get(word, word)
    names = [name for group in _GROUPS.values() for name in group]
    for name in [word] if word in names else names:
        importlib.import_module(f"torch_ir.cli.verbs.{name}").add_parser(parser.verbs)
    return parser


@contextmanager
def _warnings_as_lines(program: str) -> Iterator[None]:
    """Warnings of torch_ir as one line each; those of others as ever."""
    with warnings.catch_warnings():
        as_ever = warnings.showwarning

        def show(message: Warning | str, category: type[Warning], *rest: Any, **more: Any) -> None:
            if issubclass(category, _OURS):
                _say(program, "warning", str(message))
            else:
                as_ever(message, category, *rest, **more)

        warnings.showwarning = show
        for category in _OURS:
            warnings.simplefilter("always", category)
        yield


def _say(program: str, kind: str, text: str) -> None:
    """One line on stderr, however long the story."""
    first, *rest = [line.strip() for line in text.splitlines() if line.strip()] or ["no reason given"]
    told = "; ".join(rest[: _SHOWN_LINES - 1])
    more = f"; and {len(rest) - _SHOWN_LINES + 1} more" if len(rest) >= _SHOWN_LINES else ""
    line = f"{program}: {kind}: {' '.join(filter(None, [first, told]))}{more}"
    print(printable(line), file=sys.stderr)  # a file, or its name, may want to tell the terminal something
