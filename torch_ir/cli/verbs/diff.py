"""`torch-ir diff`: a node-by-node diff of two graph files, and the difference in cost."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING

from torch_ir.cli.verb import (
    DIFFERENT,
    add_json,
    add_sizes,
    argument,
    check_least,
    load_graph,
    print_json,
    terminal_width,
)
from torch_ir.errors import CommandError, did_you_mean

if TYPE_CHECKING:
    from torch_ir.analysis import Diff
    from torch_ir.analysis.cost_model.delta import CostDelta

SUMMARY = "compare two IR files node by node, ignoring names, with costs"
EXAMPLES = """
model.json other.json
model.json model.pb --origins
model.json optimised.json --only added,removed --by module
base.json head.json --dim batch=8 --fail-on flops+5% --fail-on nodes+0
base.json head.json --markdown --exit-zero
model.json other.json --json
"""
_STATUSES = ("added", "removed", "changed", "renamed", "same")
_IGNORABLE = ("order", "weights")
_COLOURS = {"+": 32, "-": 31, "~": 33, "=": 2, "@": 36}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    argument(parser, "first FIRST", "an IR file")
    argument(parser, "second SECOND", "another one")
    argument(parser, "--only WORDS", f"show only these kinds of nodes: {', '.join(_STATUSES)}")
    argument(parser, "--names", "also show nodes that differ only in name")
    argument(parser, "--origins", "also compare the modules and source lines of nodes")
    argument(parser, "--ignore WORDS", f"differences to ignore: {', '.join(_IGNORABLE)}")
    parser.add_argument("--by", choices=("op", "module"), default="op", help="group costs by (default: op)")
    argument(parser, "--top N", "show this many rows of the costs (default: 10)", type=int, default=10)
    add_sizes(parser)
    argument(
        parser,
        "--fail-on BUDGET...",
        "exit with 3 only if a cost grows by more than this: flops+5%%, nodes+0, peak+10MB; repeatable",
    )
    argument(parser, "--exit-zero", "exit with 0 even if the graphs differ")
    kind = parser.add_mutually_exclusive_group()
    add_json(kind)
    argument(kind, "--markdown", "print Markdown for a pull request comment")


def run(arguments: argparse.Namespace) -> int:
    from torch_ir.analysis import diff
    from torch_ir.analysis.cost_model.budget import Budget, excesses
    from torch_ir.analysis.cost_model.delta import cost_deltas
    from torch_ir.cli.arguments.size_specs import parse_sizes

    check_least(arguments, 1, "top")
    only = _words(arguments.only, "--only", _STATUSES) or ["added", "removed", "changed"]
    only += ["renamed"] if arguments.names else []
    ignored = _words(arguments.ignore, "--ignore", _IGNORABLE)
    budgets = [Budget.parse(text) for option in arguments.fail_on for text in option.split(",")]
    sizes = parse_sizes([*arguments.dim, *arguments.set])
    first, second = load_graph(arguments.first), load_graph(arguments.second)
    found = diff(first, second, ignore_origins=not arguments.origins, ignore=ignored)
    deltas = cost_deltas(found.first, found.second, by=arguments.by, sizes=sizes)
    over = excesses(budgets, deltas)
    _show(arguments, found, deltas, only, over)
    return 0 if arguments.exit_zero or (not over if budgets else found.is_equal) else DIFFERENT


def _show(
    arguments: argparse.Namespace, found: Diff, deltas: dict[str, CostDelta], only: list[str], over: list[str]
) -> None:
    from torch_ir.analysis.graph_diff.diff_text import as_markdown, as_text

    if arguments.json:
        costs = [{"entry_point": name, **delta.to_dict()} for name, delta in deltas.items()]
        print_json({**found.to_dict(), "costs": costs, "over_budget": over})
    elif arguments.markdown:
        print(as_markdown(found, deltas, only=only, top=arguments.top, over=over))
    else:
        text = as_text(found, deltas, only=only, top=arguments.top, over=over, width=terminal_width())
        print("\n".join(_coloured(text.split("\n"))))


def _words(text: str | None, option: str, known: Collection[str]) -> list[str]:
    """Split the value of an option at commas, and check each word."""
    words = [word.strip() for word in text.split(",")] if text is not None else []
    for word in words:
        if word not in known:
            raise CommandError(
                f"{option}: unknown word {word!r:.60}; expected {', '.join(known)}{did_you_mean(word, known)}"
            )
    return words


def _coloured(lines: Iterable[str]) -> Iterable[str]:
    """Return the lines in colour if stdout is a terminal that supports it."""
    if not sys.stdout.isatty() or os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return lines
    return [f"\033[{_COLOURS[line[0]]}m{line}\033[0m" if line[:1] in _COLOURS else line for line in lines]
