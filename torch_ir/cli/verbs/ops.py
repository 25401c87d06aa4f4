"""`torch-ir ops`: list the operators of a graph file, or describe operators of torch."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from torch_ir.cli.arguments.graph_argument import MODELS, open_graph
from torch_ir.cli.models.model_kinds import GRAPHS, PROGRAM
from torch_ir.cli.progress import show_progress
from torch_ir.cli.verb import add_inputs, add_json, argument, show, terminal_width
from torch_ir.errors import CommandError

if TYPE_CHECKING:
    from torch_ir.ops.operator_summary import OperatorFacts

SUMMARY = "list the operators of an IR file, or describe operators of torch"
EXAMPLES = """
model.json
model.json --check
model.json --json
net.py:Net --input 1x3x224x224
aten.conv2d
--search attention
--list --json
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    argument(parser, "file GRAPH|OPERATOR", f"an operator such as aten.conv2d, an IR file, or {MODELS}", nargs="?")
    add_inputs(parser, "for a model: the range of a named size, such as batch=1..32, or one size; repeatable")
    argument(parser, "--check", "show whether each operator of the graph runs here")
    argument(parser, "--search WORD", "list all operators of torch whose names contain this")
    argument(parser, "--list", "list all operators of torch")
    add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    if sum([bool(arguments.file), arguments.search is not None, arguments.list]) != 1:
        raise CommandError("give one of: an IR file, the name of an operator, --search WORD, --list")
    is_graph = bool(arguments.file) and _is_graph(arguments.file)
    if arguments.check and not is_graph:
        raise CommandError("--check applies to the operators of a graph")
    if is_graph:
        return _show_graph(arguments)
    show_progress("importing torch")
    from torch_ir.ops.operator_summary import operators_named, operators_with

    found = operators_named(arguments.file) if arguments.file else operators_with(arguments.search or "")
    if not found:
        raise CommandError(f"no operator of torch has {arguments.search!r} in its name")
    records = [_record(facts) for facts in found]
    show(arguments, lambda: records, lambda: "\n".join(_described(records) if arguments.file else _table(records)))
    return 0


def _is_graph(text: str) -> bool:
    """Whether a text names a graph or model: these have a single colon, torch's operator names have two."""
    return (":" in text and "::" not in text) or os.path.exists(text) or text.endswith((*GRAPHS, PROGRAM))


def _show_graph(arguments: argparse.Namespace) -> int:
    from torch_ir.analysis.dependencies.operators_used import operator_uses
    from torch_ir.draw.families import family_of
    from torch_ir.ir.text.text_table import aligned

    ir = open_graph(arguments)
    uses = operator_uses(ir)
    whole = sum(use.count for use in uses)
    records: list[dict[str, Any]] = [
        {"operator": use.op_type, "nodes": use.count, "share": use.count / whole, "family": family_of(use.op_type),
         "dtypes": list(use.dtypes), "first_node": use.node, "first_module": use.module}
        for use in uses
    ]  # fmt: skip
    if arguments.check:
        _check(records)
    rows = [["operator", "nodes", "share", "family", "dtypes", "first at", *(["runs"] if arguments.check else [])]]
    rows += [_row(record) for record in records]
    table = aligned(rows, left=(0, 3, 4, 5, 6), width=terminal_width(), least=(4, 3, 5))
    title = f"{ir.model_name or 'the graph'}: {whole} nodes, {len(uses)} operators"
    show(
        arguments,
        lambda: {"model_name": ir.model_name, "num_nodes": whole, "operators": records},
        lambda: "\n".join([title, "", *table]),
    )
    return 1 if any(record.get("why_not_run") for record in records) else 0


def _check(records: list[dict[str, Any]]) -> None:
    """Add to each record why its operator cannot run here, or ""."""
    show_progress("importing torch")
    from torch_ir.ops.operator_summary import why_not_run
    from torch_ir.ops.schema import import_packages

    import_packages(record["operator"] for record in records)
    for record in records:
        record["why_not_run"] = why_not_run(record["operator"])


def _row(record: dict[str, Any]) -> list[str]:
    place = record["first_node"] + (f" in {record['first_module']}" if record["first_module"] else "")
    cells = [record["operator"], str(record["nodes"]), f"{record['share']:.1%}", record["family"]]
    cells += [", ".join(record["dtypes"]), place]
    if "why_not_run" in record:
        cells.append(f"no: {record['why_not_run']}" if record["why_not_run"] else "yes")
    return cells


def _described(records: list[dict[str, Any]]) -> Iterator[str]:
    from textwrap import fill

    wide = terminal_width()
    for number, record in enumerate(records):
        schema = record["schema"] if wide is None else fill(record["schema"], wide - 2, subsequent_indent="      ")
        yield from (
            *([""] if number else []),
            record["operator"],
            f"  {schema}",
            f"  family: {record['family']}",
            f"  effects: {', '.join(_effects(record)) or 'none: it returns new tensors'}",
            f"  multiply-adds: {record['macs'] or 'not counted'}",
            f"  in a graph: {'rejected, because it ' + record['reaches'] if record['reaches'] else 'runs'}",
        )


def _table(records: list[dict[str, Any]]) -> list[str]:
    from torch_ir.ir.text.text_table import aligned

    rows = [["operator", "family", "effects"]]
    rows += [[record["operator"], record["family"], ", ".join(_effects(record)) or "-"] for record in records]
    return aligned(rows, left=(0, 1, 2), width=terminal_width(), long=2)


def _record(facts: OperatorFacts) -> dict[str, Any]:
    from dataclasses import asdict

    from torch_ir.analysis.cost_model.flop_formulas import how_counted
    from torch_ir.draw.families import family_of

    record = asdict(facts)
    name = record.pop("op_type")
    return {"operator": name, **record, "family": family_of(name), "macs": how_counted(name)}


def _effects(record: dict[str, Any]) -> list[str]:
    effects = [f"writes {', '.join(record['writes'])}"] if record["writes"] else []
    effects += ["may return a view of an input"] if record["may_alias"] and not record["writes"] else []
    effects += ["may draw random numbers"] if record["is_random"] else []
    return effects + ([record["reaches"]] if record["reaches"] else [])
