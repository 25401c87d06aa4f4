"""`torch-ir completion`: print the completion script of a shell, made from the parsers of all commands."""

from __future__ import annotations

import argparse
from typing import Any

from torch_ir.cli.machine.completion_scripts import SCRIPTS, Argument, Command

SUMMARY = "print a completion script for your shell"
EXAMPLES = """
bash > ~/.local/share/bash-completion/completions/torch-ir
zsh > ~/.zfunc/_torch-ir
fish > ~/.config/fish/completions/torch-ir.fish
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=tuple(SCRIPTS), help="the shell")


def run(arguments: argparse.Namespace) -> int:
    from torch_ir.cli.dispatch import build_parser

    parsers = build_parser().verbs.choices
    commands = [
        Command(name, parser.description or "", tuple(map(_argument, parser._actions)))
        for name, parser in parsers.items()
    ]
    print(SCRIPTS[arguments.shell](commands), end="")
    return 0


def _argument(action: argparse.Action) -> Argument:
    """Return an argument of a parser; `words` are values that it offers without checking them."""
    offered: Any = action.choices or getattr(action, "words", ())
    words = tuple(map(str, offered))
    text = "" if action.help in (None, argparse.SUPPRESS) else str(action.help).replace("%%", "%")
    value = "" if action.nargs == 0 else str(action.metavar or action.dest)
    is_repeated = action.nargs in ("*", "+") or isinstance(action, argparse._AppendAction)
    return Argument(tuple(action.option_strings), text, value, words, is_repeated)
