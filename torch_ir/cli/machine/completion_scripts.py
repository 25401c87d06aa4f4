"""Completion scripts for bash, zsh and fish, written from the arguments of all commands."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple

from torch_ir.escaping import in_shell

_FOLDERS = {"PACK", "FOLDER"}
_FILES = {
    "FILE", "FIRST", "SECOND", "DUMPS", "MODEL", "MODELS", "TARGET", "GRAPH", "GRAPH|OPERATOR", "CHECKPOINT", "PLAN",
    "PATH", "SCHEME|FILE",
}  # fmt: skip
_PROGRAMS = "torch-ir pytorch-ir"


class Argument(NamedTuple):
    """An option, or a positional argument, which has no `options`; `value` is the metavar, "" for a flag."""

    options: tuple[str, ...]
    help: str
    value: str
    words: tuple[str, ...] = ()  # the values to offer
    is_repeated: bool = False

    @property
    def is_file(self) -> bool:
        return not self.words and self.value in _FILES

    @property
    def is_folder(self) -> bool:
        return not self.words and self.value in _FOLDERS


class Command(NamedTuple):
    """A command with its arguments."""

    name: str
    help: str
    arguments: tuple[Argument, ...]

    @property
    def options(self) -> list[Argument]:
        return [each for each in self.arguments if each.options]

    @property
    def positionals(self) -> list[Argument]:
        return [each for each in self.arguments if not each.options]


def _bash(commands: Iterable[Command]) -> str:
    commands = list(commands)
    cases = [line for command in commands for line in _bash_cases(command)]
    names = " ".join(command.name for command in commands)
    return f"""\
# bash completion of torch-ir; made by `torch-ir completion bash`
_torch_ir() {{
  local word=${{COMP_WORDS[COMP_CWORD]}} verb=${{COMP_WORDS[1]}} before=${{COMP_WORDS[COMP_CWORD-1]}}
  local words='{names} --version --help' kind=
  if ((COMP_CWORD > 1)); then
    words=
    [[ $word == -* ]] && before=-
    case "$verb $before" in
{chr(10).join(f"      {line}" for line in cases)}
    esac
  fi
  local IFS=$'\\n'  # file names may contain spaces
  COMPREPLY=($(compgen $kind -W "${{words// /$IFS}}" -- "$word"))
}}
complete -o filenames -F _torch_ir {_PROGRAMS}
"""


def _bash_cases(command: Command) -> Iterator[str]:
    """Yield a case for each option with a value, one for a word that begins with a dash, and one for all others."""
    name = command.name
    yield f"'{name} -') words='{' '.join(option for each in command.options for option in each.options)}' ;;"
    for each in command.options:
        if each.value:
            pattern = "|".join(f"'{name} {option}'" for option in each.options)
            yield f"{pattern}) {_bash_values([each])} ;;"
    yield f"'{name} '*) {_bash_values(command.positionals)} ;;"


def _bash_values(arguments: Iterable[Argument]) -> str:
    arguments = list(arguments)
    words = " ".join(word for each in arguments for word in each.words)
    kind = (
        "-f" if any(each.is_file for each in arguments) else "-d" if any(each.is_folder for each in arguments) else ""
    )
    return f"words='{words}' kind={kind}"


def _zsh(commands: Iterable[Command]) -> str:
    commands = list(commands)
    names = "\n".join(f"    {in_shell(f'{each.name}:{each.help}')}" for each in commands)
    cases = "\n".join(f"    {each.name}) _arguments -s {' '.join(_zsh_arguments(each))} ;;" for each in commands)
    return f"""\
#compdef {_PROGRAMS}
# zsh completion of torch-ir; made by `torch-ir completion zsh`
_torch_ir() {{
  local -a commands=(
{names}
  )
  if ((CURRENT == 2)); then
    _describe command commands
    compadd -- --version --help
    return
  fi
  shift words
  ((CURRENT--))
  case $words[1] in
{cases}
  esac
}}
if [[ $funcstack[1] == _torch-ir ]]; then _torch_ir "$@"; else compdef _torch_ir {_PROGRAMS}; fi
"""


def _zsh_arguments(command: Command) -> Iterator[str]:
    """Yield the arguments of a command as specifications of zsh's `_arguments`."""
    for each in command.options:
        text = re.sub(r"([\[\]:\\])", r"\\\1", each.help)
        excluded = "*" if each.is_repeated else f"({' '.join(each.options)})"
        value = f":{_zsh_value(each)}" if each.value else ""
        yield from (in_shell(f"{excluded}{option}[{text}]{value}") for option in each.options)
    for number, each in enumerate(command.positionals, 1):
        yield in_shell(f"{'*' if each.is_repeated else number}:{_zsh_value(each)}")


def _zsh_value(each: Argument) -> str:
    label = re.sub(r"[^\w-]+", " ", each.value)
    offered = f"({' '.join(each.words)})" if each.words else "_files" if each.is_file else ""
    return f"{label}:{'_files -/' if each.is_folder else offered}"


def _fish(commands: Iterable[Command]) -> str:
    lines = [
        "# fish completion of torch-ir; made by `torch-ir completion fish`",
        "function __torch_ir_using",
        "    set -l words (commandline -opc)",
        "    test (count $words) -gt 1; and test $words[2] = $argv[1]",
        "end",
        "complete -c torch-ir -f",
        "complete -c pytorch-ir -w torch-ir",
        "complete -c torch-ir -n 'test (count (commandline -opc)) -eq 1' -l version -l help",
    ]
    for command in commands:
        lines.append(
            "complete -c torch-ir -n 'test (count (commandline -opc)) -eq 1' "
            f"-a {command.name} -d {_in_fish(command.help)}"
        )
        lines += [_fish_argument(command.name, each) for each in command.arguments]
    return "\n".join(lines) + "\n"


def _fish_argument(command: str, each: Argument) -> str:
    names = " ".join(f"-{'l' if name.startswith('--') else 's'} {name.lstrip('-')}" for name in each.options)
    if each.words:
        value = f"-{'x' if names else 'f'}ka {_in_fish(' '.join(each.words))}"
    elif each.is_folder:
        value = f"-{'x' if names else 'f'}a '(__fish_complete_directories)'"
    else:
        value = ("-r -F" if names else "-F") if each.is_file else "-x" if names and each.value else ""
    words = (f"complete -c torch-ir -n '__torch_ir_using {command}'", names, value, f"-d {_in_fish(each.help)}")
    return " ".join(filter(None, words))


def _in_fish(text: str) -> str:
    """Quote text for fish, where a backslash escapes also within quotes."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


SCRIPTS: Mapping[str, Callable[[Iterable[Command]], str]] = {"bash": _bash, "zsh": _zsh, "fish": _fish}
