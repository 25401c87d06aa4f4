"""`-o -` is stdout, and never a file of that name."""

from __future__ import annotations

import argparse

from torch_ir.errors import CommandError

STDOUT = "-"
_PRINTERS = ("info", "draw", "visualize")  # which print what they would write, where there is no -o
_STREAMERS = ("extract",)  # which see to it themselves: their summary goes to stderr then


def settle_stdout(arguments: argparse.Namespace) -> None:
    """Let a verb that prints print; refuse `-o -` for one that only writes files."""
    if getattr(arguments, "output", None) != STDOUT or arguments.verb in _STREAMERS:
        return
    if arguments.verb not in _PRINTERS:
        raise CommandError(f"{arguments.verb} does not write to stdout; name what it writes: -o NAME")
    arguments.output = None
