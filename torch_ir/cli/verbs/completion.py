"""`torch-ir completion`: the script that lets a shell complete our words."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from torch_ir.cli.verb import add_verb

if TYPE_CHECKING:
    from torch_ir.cli.verb import Verbs

_EXAMPLES = """
bash > ~/.local/share/bash-completion/completions/torch-ir
zsh > ~/.zfunc/_torch-ir
fish > ~/.config/fish/completions/torch-ir.fish
"""
SHELLS = ("bash", "zsh", "fish")


def add_parser(verbs: Verbs) -> None:
    parser = add_verb(verbs, "completion", "print a script that completes words in your shell", _EXAMPLES, run)
    parser.add_argument("shell", choices=SHELLS, help="the shell that will read it")


def run(arguments: argparse.Namespace) -> int:
    print(script_of(arguments.shell).read_text(encoding="utf-8"), end="")
    return 0


def script_of(shell: str) -> Path:
    """The script for a shell, which is made when the package is."""
    return Path(__file__).parents[1] / "completions" / f"torch-ir.{shell}"
