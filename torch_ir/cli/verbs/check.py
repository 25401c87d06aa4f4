"""`torch-ir check`: whether a graph file keeps the rules of the format."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any

from torch_ir.cli.progress import show_progress
from torch_ir.cli.verb import add_verb, load_graph, print_json
from torch_ir.errors import MissingFileError, SerializationError, printable

if TYPE_CHECKING:
    from torch_ir.cli.verb import Verbs
    from torch_ir.safety import Report

_EXAMPLES = """
model.json
model.json --trusted
model.pb --json
"""
_MOST_SHOWN = 100


def add_parser(verbs: Verbs) -> None:
    parser = add_verb(verbs, "check", "say whether an IR file keeps every rule of the format", _EXAMPLES, run)
    parser.add_argument("file", metavar="FILE", help="an IR file, from anybody")
    parser.add_argument("--trusted", action="store_true", help="do not derive shapes and dtypes anew")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(arguments: argparse.Namespace) -> int:
    from torch_ir.safety import Report, examine

    report = Report()
    try:
        ir = load_graph(arguments.file)
    except MissingFileError:
        raise
    except SerializationError as error:
        errors = [error]
    else:
        show_progress(f"checking {arguments.file} against torch's operators")
        errors = list(islice(examine(ir, report, trusted=arguments.trusted), _MOST_SHOWN))
    if arguments.json:
        print_json(_as_record(report, errors))
    else:
        print(*map(printable, _lines(report, errors, arguments.trusted)), sep="\n")
    return 1 if errors else 0


def _lines(report: Report, errors: list[SerializationError], trusted: bool) -> Iterator[str]:
    yield from (f"{error.rule or '-'}  {error}" for error in errors)
    if len(errors) == _MOST_SHOWN:
        yield "and maybe more"
    if errors:
        return
    derived = "as declared" if trusted else "derived anew"
    yield f"OK: {report.nodes} nodes: operators, arguments and attributes are torch's; shapes and dtypes are {derived}"
    if report.declared:
        yield f"torch cannot say what these make: {_counted(report.declared)}"
    if report.opaque:
        yield f"unknown here, and run by nobody: {_counted(report.opaque)}"
    if report.changes and report.changes.found:
        yield str(report.changes)


def _counted(operators: Counter[str]) -> str:
    return ", ".join(f"{name} ({count})" for name, count in operators.most_common())


def _as_record(report: Report, errors: list[SerializationError]) -> dict[str, Any]:
    return {
        "ok": not errors,
        "errors": [
            {"rule": error.rule, "path": error.path, "node": error.node, "message": str(error.args[0])}
            for error in errors
        ],
        "nodes": report.nodes,
        "declared": dict(report.declared),
        "opaque": dict(report.opaque),
        "changed": dict(report.changes.found) if report.changes else {},
    }
