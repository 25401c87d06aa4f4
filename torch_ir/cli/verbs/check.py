"""`torch-ir check`: check a graph file against the rules of the format."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any

from torch_ir.cli.progress import show_progress
from torch_ir.cli.verb import add_json, argument, load_graph, show
from torch_ir.errors import MissingFileError, SerializationError

if TYPE_CHECKING:
    from torch_ir.safety import Report

SUMMARY = "check an IR file against the rules of the format"
EXAMPLES = """
model.json
model.json --trusted
model.pb --json
"""
_MOST_SHOWN = 100


def add_arguments(parser: argparse.ArgumentParser) -> None:
    argument(parser, "file FILE", "an IR file, trusted or not")
    argument(parser, "--trusted", "skip shape and dtype inference")
    add_json(parser)


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
    show(
        arguments,
        lambda: _as_record(report, errors),
        lambda: "\n".join(_lines(report, errors, arguments.trusted)),
    )
    return 1 if errors else 0


def _lines(report: Report, errors: list[SerializationError], trusted: bool) -> Iterator[str]:
    from torch_ir.ir.text.amounts import plural

    yield from (f"{error.rule or '-'}  {error}" for error in errors)
    if len(errors) == _MOST_SHOWN:
        yield f"stopped after {_MOST_SHOWN} errors"
    if errors:
        return
    unknown, nodes = report.opaque.total(), plural(report.nodes, "node")
    derived = "not checked" if trusted else "confirmed by inference"
    valid = f"operators, arguments and attributes are valid; shapes and dtypes are {derived}"
    if not unknown:
        yield f"OK: {nodes}: {valid}"
    else:
        yield f"no errors, but {unknown} of {nodes} not checked: unknown operators {_counted(report.opaque)}"
        yield "import the module that defines them with --import"
        if unknown < report.nodes:
            yield f"{plural(report.nodes - unknown, 'other node')}: {valid}"
    if report.declared:
        yield f"no shape inference for: {_counted(report.declared)}"
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
