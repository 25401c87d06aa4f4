"""Argument parser: help that fits the terminal, errors that suggest the nearest valid word."""

from __future__ import annotations

import argparse
import re
import textwrap
from difflib import get_close_matches
from typing import Any, NoReturn

from torch_ir.errors import did_you_mean

# spaces inside quotes do not end a word, and an option stays with its value
_WORD = re.compile(r"""(?:-[\w-]+ (?=[^-\s]))?(?:"[^"]*"|'[^']*'|[^\s"'])+""")


class Formatter(argparse.RawDescriptionHelpFormatter):
    """Wraps text to the terminal, and commands so that a shell still reads them as one."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        lines: list[str] = []
        for line in text.splitlines():
            lines += _folded(line, width) if line.startswith(" ") else textwrap.wrap(line, width) or [""]
        return textwrap.indent("\n".join(lines), indent)


class UsageError(Exception):
    """The words of a command line are invalid; `parser` has the usage."""

    def __init__(self, message: str, parser: Parser) -> None:
        super().__init__(message)
        self.parser = parser


class Parser(argparse.ArgumentParser):
    """A parser whose errors suggest the nearest valid word, and are raised as UsageError."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**{"formatter_class": Formatter, **settings})

    def error(self, message: str) -> NoReturn:
        raise UsageError(message, self)

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is None or value in action.choices:
            return
        kind = "command" if isinstance(action, argparse._SubParsersAction) else "choice"
        known = [str(choice) for choice in action.choices]
        near = did_you_mean(str(value), known)
        if len(known) == 1 and not action.option_strings and not near:
            self.error(f"{known[0]!r} is missing before {str(value)!r}; write: {self.prog} {known[0]} {value} ...")
        hint = near or f"; expected one of {', '.join(known)}"
        name = None if kind == "command" else action
        raise argparse.ArgumentError(name, f"unknown {kind} {str(value)!r}{hint}")

    def refuse(self, surplus: list[str]) -> NoReturn:
        """Report arguments that the parser does not know."""
        word = surplus[0].partition("=")[0]
        if word.startswith("-"):
            known = {option.lstrip("-"): option for option in self._option_string_actions}
            near = get_close_matches(word.lstrip("-"), known, n=1)
            hint = f"; did you mean {known[near[0]]!r}?" if near else ""
            self.error(f"unknown option {word!r}{hint}")
        self.error(f"unexpected argument {word!r}")


class Program(Parser):
    """The top-level parser, whose help lists commands by purpose."""

    def __init__(self, groups: dict[str, tuple[str, ...]], **settings: Any) -> None:
        super().__init__(**settings)
        self._groups = groups
        self.verbs: argparse._SubParsersAction[Parser] = self.add_subparsers(
            dest="verb", prog=self.prog, metavar="COMMAND", help=argparse.SUPPRESS, parser_class=Parser
        )

    def format_help(self) -> str:
        formatter = self._get_formatter()
        formatter.add_usage(self.usage, self._actions, self._mutually_exclusive_groups)
        formatter.add_text(self.description)
        shown = {action.dest: action for action in self.verbs._choices_actions}
        for title, names in self._groups.items():
            formatter.start_section(title)
            formatter.add_arguments([shown[name] for name in names if name in shown])
            formatter.end_section()
        formatter.start_section("options")
        formatter.add_arguments([action for action in self._actions if action.option_strings])
        formatter.end_section()
        formatter.add_text(self.epilog)
        return formatter.format_help()


def _folded(command: str, width: int) -> list[str]:
    """Split a command over several lines with continuation backslashes."""
    if len(command) <= width:
        return [command]
    lines, line = [], " "
    for word in _WORD.findall(command):
        if line.strip() and len(f"{line} {word} \\") > width:
            lines.append(f"{line} \\")
            line = " " * 5
        line += f" {word}"
    return [*lines, line]
