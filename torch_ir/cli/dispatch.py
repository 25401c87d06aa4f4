"""Entry point: parse the command line, call one verb, print errors as one line, return the exit status."""

from __future__ import annotations

import importlib
import sys
import warnings
from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch_ir._version import __version__
from torch_ir.cli.arguments.named_files import check_files
from torch_ir.cli.file_limits import limited
from torch_ir.cli.parser import Program, UsageError
from torch_ir.cli.progress import progress
from torch_ir.cli.stdout import STDOUT, settle_stdout
from torch_ir.cli.streams import guarded_streams
from torch_ir.cli.termination import TerminatedError, terminable
from torch_ir.cli.verb import add_verb, print_json
from torch_ir.errors import (
    BackendWarning,
    CaptureWarning,
    Cause,
    ClosedPipeError,
    GraphError,
    RuleError,
    SecurityWarning,
    SerializationError,
    TorchIRError,
    VersionWarning,
    WeightWarning,
    printable,
)

_OF_MACHINE = "this machine"  # the group whose commands are in the folder `machine`
_GROUPS = {
    "capture a model": ("extract", "llm", "train-step"),
    "inspect a graph": ("info", "ops", "draw", "explore", "cost", "memory", "diff", "check"),
    "optimise": ("optimize", "passes", "quantize", "sensitivity"),
    "run and verify": ("run", "weights", "verify", "golden", "compare", "bench"),
    "convert, lower and distribute": ("convert", "lower", "coverage", "plan", "shard", "split"),
    "many models": ("sweep",),
    _OF_MACHINE: ("doctor", "calibrate", "completion"),
}
_OTHER_NAMES = {"visualize": "draw"}
_SHOWN_LINES = 4
_READER_LEFT = 141  # the shell's status for a program ended by SIGPIPE
_OURS = (BackendWarning, CaptureWarning, SecurityWarning, VersionWarning, WeightWarning)


def main(argv: list[str] | None = None) -> int:
    """Run one command and return its exit status.

    0 success, 1 failure, 2 usage error, 129 hung up, 130 interrupted, 141 stdout closed by its reader, 143 terminated.
    """
    program, words = _program(), sys.argv[1:] if argv is None else argv
    with guarded_streams() as stdout:
        try:
            status = _run(program, words)
        except SystemExit:  # help, version or a usage error
            stdout.flush()
            if stdout.error is None:
                raise
            status = 0
        stdout.flush()
        if isinstance(stdout.error, BrokenPipeError):
            return _READER_LEFT
        if stdout.error is not None:
            _print_line(program, "error", f"cannot write to stdout: {stdout.error.strerror or stdout.error}")
            return status or 1
    return status


def _run(program: str, words: list[str]) -> int:
    """Run one command, print an error as one line on stderr, and return the exit status."""
    if words[:1] == ["help"]:
        words = [*words[1:2], "--help"]
    parser = build_parser(program, words[0] if words else "")
    arguments = _parsed(parser, words)
    if arguments.verb is None:
        parser.print_help()
        return 2
    try:
        with terminable(), progress(f"{program} {arguments.verb}", quiet=arguments.quiet), _warnings_as_lines(program):
            settle_stdout(arguments)
            check_files(arguments)
            _import_code(arguments)
            with limited(arguments):
                status: int = arguments.run(arguments)
        return status
    except TerminatedError as error:
        return error.status
    except KeyboardInterrupt:
        return 130
    except ClosedPipeError:
        return _READER_LEFT
    except TorchIRError as error:
        rule = f" [rule {error.rule}]" if isinstance(error, (GraphError, SerializationError)) and error.rule else ""
        _print_line(program, "error", f"{error}{rule}")
        _print_json_error(arguments, error)
    except OSError as error:
        place = f": {error.filename}" if error.filename else ""
        _print_line(program, "error", f"{error.strerror or error}{place}")
        _print_json_error(arguments, error)
    return 1


def _parsed(parser: Program, words: list[str]) -> Namespace:
    """Parse the words; print a usage error, with `--json` also as JSON, and exit."""
    try:
        arguments, surplus = parser.parse_known_args(words)
        if surplus:
            (parser.verbs.choices[arguments.verb] if arguments.verb else parser).refuse(surplus)
    except UsageError as error:
        error.parser.print_usage(sys.stderr)
        print(printable(f"{error.parser.prog}: error: {error}"), file=sys.stderr)
        if "--json" in words:
            print_json({"error": {"type": "UsageError", "message": str(error)}})
        raise SystemExit(2) from None
    return arguments


def _print_json_error(arguments: Namespace, error: Exception) -> None:
    """With `--json`, print the error as JSON on stdout, where programs read the result."""
    output = getattr(arguments, "output", None)
    is_taken = output == STDOUT or (arguments.verb == "info" and output is not None)  # stdout has no JSON then
    if getattr(arguments, "json", False) and not is_taken:
        record: dict[str, Any] = {"type": type(error).__name__, "message": str(error)}
        if isinstance(error, RuleError):
            record |= {"rule": error.rule, "path": error.path, "node": error.node}
        if isinstance(error, TorchIRError) and error.cause is not Cause.UNKNOWN:
            record["cause"] = error.cause.name
        print_json({"error": record})


def _import_code(arguments: Namespace) -> None:
    """Import the modules that the user names with `--import`; a graph file cannot name any."""
    if arguments.imports:
        from torch_ir.cli.models.factory import import_code

        for name in arguments.imports:
            import_code(name)


def _program() -> str:
    """Return the name of the running program; both are installed."""
    return "pytorch-ir" if Path(sys.argv[0]).stem == "pytorch-ir" else "torch-ir"


def build_parser(program: str = "torch-ir", word: str = "") -> Program:
    """Return the parser of one command, or of all; each command is in the file of its name."""
    parser = Program(
        _GROUPS,
        prog=program,
        usage="%(prog)s [-h] [--version] COMMAND ...",
        description="Turn PyTorch models into a small, exact, weight-free IR; inspect, run and verify it.",
        epilog=f"`{program} help COMMAND` shows the options of a command, with examples.",
    )
    parser.add_argument("--version", action="version", version=f"torch-ir {__version__}")
    word = _OTHER_NAMES.get(word, word)
    names = [name for group in _GROUPS.values() for name in group]
    for name in [word] if word in names else names:
        folder = "machine" if name in _GROUPS[_OF_MACHINE] else "verbs"
        verb = importlib.import_module(f"torch_ir.cli.{folder}.{name.replace('-', '_')}")
        add_verb(parser, name, verb, [other for other, usual in _OTHER_NAMES.items() if usual == name])
    return parser


@contextmanager
def _warnings_as_lines(program: str) -> Iterator[None]:
    """Print warnings of torch_ir as one line each; leave other warnings alone."""
    with warnings.catch_warnings():
        original = warnings.showwarning

        def show(message: Warning | str, category: type[Warning], *rest: Any, **more: Any) -> None:
            if issubclass(category, _OURS):
                _print_line(program, "warning", str(message))
            else:
                original(message, category, *rest, **more)

        warnings.showwarning = show
        for category in _OURS:
            warnings.simplefilter("always", category)
        warnings.filterwarnings("ignore", "Failed to initialize NumPy")  # of `import torch`, which needs none here
        yield


def _print_line(program: str, kind: str, text: str) -> None:
    """Print one line on stderr; long texts are cut."""
    first, *rest = [line.strip() for line in text.splitlines() if line.strip()] or ["no reason given"]
    details = "; ".join(rest[: _SHOWN_LINES - 1])
    more = f"; and {len(rest) - _SHOWN_LINES + 1} more" if len(rest) >= _SHOWN_LINES else ""
    line = f"{program}: {kind}: {' '.join(filter(None, [first, details]))}{more}"
    print(printable(line), file=sys.stderr)  # file contents and names may contain control characters
