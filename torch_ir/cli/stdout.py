"""`-o -` means stdout, never a file of that name."""

from __future__ import annotations

import argparse

from torch_ir.cli.streams import is_stdout_closed
from torch_ir.errors import CommandError

STDOUT = "-"
_NAMES = (STDOUT, "/dev/stdout", "/dev/fd/1", "/proc/self/fd/1")
_PRINTERS = ("info", "draw", "visualize")  # print their output if there is no -o
_STREAMERS = ("extract",)  # handle stdout themselves and print their summary on stderr


def settle_stdout(arguments: argparse.Namespace) -> None:
    """Handle `-o -`: print for verbs that can, reject it for verbs that only write files or if stdout is closed."""
    if getattr(arguments, "output", None) in _NAMES and is_stdout_closed():
        raise CommandError(f"{arguments.output} is stdout, which is closed; name a file: -o NAME")
    if getattr(arguments, "output", None) != STDOUT or arguments.verb in _STREAMERS:
        return
    if arguments.verb not in _PRINTERS:
        raise CommandError(f"{arguments.verb} does not write to stdout; name a file: -o NAME")
    arguments.output = None
