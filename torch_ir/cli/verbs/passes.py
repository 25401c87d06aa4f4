"""`torch-ir passes`: list the optimisation passes."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from torch_ir.cli.progress import show_progress
from torch_ir.cli.verb import add_json, argument, show, terminal_width

if TYPE_CHECKING:
    from torch_ir.passes import Pass

SUMMARY = "list the optimisation passes, or explain one"
EXAMPLES = """

fold-batch-norm
--json
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    argument(parser, "name PASS", "the pass to explain", nargs="?")
    add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    show_progress("importing torch")
    from torch_ir.passes import find_pass

    if arguments.name is None:
        return list_all(arguments)
    found = _record(find_pass(arguments.name))
    show(arguments, lambda: found, lambda: "\n".join(_explained(found)))
    return 0


def list_all(arguments: argparse.Namespace) -> int:
    """Print all passes with their first level, summary, options and the measures they may raise."""
    from torch_ir.ir.text.text_table import aligned
    from torch_ir.passes import list_passes

    records = [_record(each) for each in list_passes()]
    rows = [["pass", "level", "what it does"]]
    rows += [[record["name"], (record["levels"] or ["-"])[0], _summary(record)] for record in records]
    table = aligned(rows, left=(0, 1, 2), width=terminal_width(), long=2)
    show(arguments, lambda: records, lambda: "\n".join(table))
    return 0


def _record(each: Pass) -> dict[str, Any]:
    from inspect import getdoc

    from torch_ir.passes.optimize_levels import LEVELS

    return {
        "name": each.name,
        "summary": each.summary,
        "description": getdoc(each.function) or each.summary,
        "levels": [level for level, names in LEVELS.items() if each.name in names],
        "options": [
            {"name": name, "type": type(default).__name__, "default": default} for name, default in each.options.items()
        ],
        "may_raise": list(each.may_raise),
        "rules": [{"name": rule.name, "description": getdoc(rule.change) or ""} for rule in each.rules],
    }


def _summary(record: dict[str, Any]) -> str:
    options = ", ".join(f"{option['name']}={option['default']}" for option in record["options"])
    raised = f"  (may raise: {', '.join(record['may_raise'])})" if record["may_raise"] else ""
    return f"{record['summary']}{f'  [{options}]' if options else ''}{raised}"


def _explained(record: dict[str, Any]) -> list[str]:
    """Return the full description of a pass; examples are in its docstring or in those of its rules."""
    options = [f"{option['name']}={option['default']} ({option['type']})" for option in record["options"]]
    lines = [
        record["name"],
        "",
        *(f"  {line}".rstrip() for line in record["description"].splitlines()),
        "",
        f"  levels: {', '.join(record['levels']) or 'none; use `optimize --pass`'}",
        f"  options: {', '.join(options) or 'none'}",
        f"  may raise: {', '.join(record['may_raise']) or 'nothing'}",
    ]
    for rule in record["rules"]:
        lines += ["", f"  rule {rule['name']}", *(f"    {line}".rstrip() for line in rule["description"].splitlines())]
    return lines
