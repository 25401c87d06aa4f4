"""The completion scripts of the package: `python -m tests.completions --write` regenerates them."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

import shtab

from torch_ir.cli.completions.completion import SHELLS, script_of
from torch_ir.cli.dispatch import build_parser
from torch_ir.cli.verb import BACKENDS

_FOLDERS = {"PACK", "FOLDER"}
_FILES = {"FILE", "FIRST", "SECOND", "DUMPS", "MODEL", "MODELS", "TARGET", "GRAPH", "GRAPH|OPERATOR"}
_NODES, _LEVELS, _REPEATED = ("module", "function", "aten"), ("clean", "basic", "full"), ("inline", "function")
# values that the commands validate themselves, so that the parser does not know them
_WORDS = {
    "--backend": BACKENDS,
    "--blocks": _REPEATED,
    "--capture": ("auto", "export", "record"),
    "--level": {
        verb: _LEVELS if verb in ("optimize", "run", "bench") else _NODES for verb in build_parser().verbs.choices
    },
}


def scripts() -> Iterator[tuple[Path, str]]:
    """Return where each script belongs, and its expected content."""
    parser = build_parser()
    parser.verbs.help = "what to do"  # it is hidden from the help, which lists the verbs in groups
    for verb, options in parser.verbs.choices.items():
        for action in options._actions:
            _complete(verb, action)
    for shell in SHELLS:
        yield script_of(shell), shtab.complete(parser, shell).rstrip() + "\n"


def _complete(verb: str, action: argparse.Action) -> None:
    """Return how an argument is completed."""
    for option in action.option_strings:
        words = _WORDS.get(option, action.choices)
        action.choices = words[verb] if isinstance(words, dict) else words
    if action.metavar in _FILES:
        action.complete = shtab.FILE  # type: ignore[attr-defined]
    elif action.metavar in _FOLDERS:
        action.complete = shtab.DIRECTORY  # type: ignore[attr-defined]


def main(arguments: list[str]) -> int:
    write = arguments == ["--write"]
    for path, text in scripts():
        if write:
            path.parent.mkdir(exist_ok=True)
            path.write_text(text, encoding="utf-8")
        elif not path.exists() or path.read_text(encoding="utf-8") != text:
            print(f"{path.name} is old; run: python -m tests.completions --write")
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
