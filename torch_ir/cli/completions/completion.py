"""`torch-ir completion`: print the completion script of a shell."""

from __future__ import annotations

import argparse
from pathlib import Path

SUMMARY = "print a completion script for your shell"
EXAMPLES = """
bash > ~/.local/share/bash-completion/completions/torch-ir
zsh > ~/.zfunc/_torch-ir
fish > ~/.config/fish/completions/torch-ir.fish
"""
SHELLS = ("bash", "zsh", "fish")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=SHELLS, help="the shell")


def run(arguments: argparse.Namespace) -> int:
    print(script_of(arguments.shell).read_text(encoding="utf-8"), end="")
    return 0


def script_of(shell: str) -> Path:
    """Return the script for a shell, which is generated with the package."""
    return Path(__file__).with_name(f"torch-ir.{shell}")
