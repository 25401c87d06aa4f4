"""`-o -` is stdout, and never a file of that name."""

from __future__ import annotations

import argparse

from torch_ir.cli.streams import is_stdout_closed
from torch_ir.errors import CommandError

STDOUT = "-"
_NAMES = (STDOUT, "/dev/stdout", "/dev/fd/1", "/proc/self/fd/1")
_PRINTERS = ("info", "draw", "visualize")  # which print what they would write, where there is no -o
_STREAMERS = ("extract",)  # which see to it themselves: their summary goes to stderr then


def settle_stdout(arguments: argparse.Namespace) -> None:
    """Let a verb that prints print; refuse `-o -` for one that only writes files, and where stdout is closed."""
    if getattr(arguments, "output", None) in _NAMES and is_stdout_closed():
        raise CommandError(f"{arguments.output} is stdout, which is closed; name a file: -o NAME")
    if getattr(arguments, "output", None) != STDOUT or arguments.verb in _STREAMERS:
        return
    if arguments.verb not in _PRINTERS:
        raise CommandError(f"{arguments.verb} does not write to stdout; name what it writes: -o NAME")
    arguments.output = None
