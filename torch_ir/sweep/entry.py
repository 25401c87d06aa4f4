"""Lists of models: a line each, in command-line syntax or JSON.

hf:llama?num_hidden_layers=2  -i "int64[1,16]"      # with inputs
net.py:Net --input 1x8 --dim batch=1..32
{"model": "timm:resnet50", "input": ["1x3x224x224"]}
"""

from __future__ import annotations

import argparse
import hashlib
import json
import shlex
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NoReturn

from torch_ir.errors import CommandError, did_you_mean

_LISTS = ("input", "dim")


@dataclass(frozen=True)
class Entry:
    """One model with its inputs and sizes; `error` describes a line that cannot be parsed."""

    model: str
    input: tuple[str, ...] = ()
    dim: tuple[str, ...] = ()
    error: str = ""

    @property
    def key(self) -> str:
        """A digest of the model and its inputs, independent of the position in a list."""
        text = json.dumps([self.model, self.input, self.dim])
        return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def read_entries(lines: Iterable[str]) -> list[Entry]:
    """Parse a list of models, without duplicates; a line that cannot be parsed is an entry with an error."""
    found: dict[str, Entry] = {}
    for entry in _entries(lines):
        found.setdefault(entry.key, entry)
    return list(found.values())


def _entries(lines: Iterable[str]) -> Iterator[Entry]:
    for number, line in enumerate(lines, 1):
        text = line.strip()
        if not text or text.startswith("#"):
            continue
        try:
            yield _from_json(text) if text.startswith("{") else _from_words(text)
        except CommandError as error:
            yield Entry(text, error=f"line {number}: {error}")


def _from_words(text: str) -> Entry:
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise CommandError(f"the quotes do not match: {error}") from None
    comment = next((index for index, word in enumerate(words) if word.startswith("#")), len(words))
    given = _parser().parse_args(words[:comment])
    return Entry(given.model, tuple(given.input), tuple(given.dim))


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise CommandError(f"{message}; write it as MODEL --input SPEC --dim NAME=SIZE")


def _parser() -> _Parser:
    parser = _Parser(add_help=False, allow_abbrev=False)
    parser.add_argument("model")
    parser.add_argument("-i", "--input", action="append", default=[])
    parser.add_argument("-d", "--dim", action="append", default=[])
    return parser


def _from_json(text: str) -> Entry:
    try:
        record: Any = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise CommandError(f"not JSON: {error}") from None
    for key in record:
        if key not in ("model", *_LISTS):
            raise CommandError(f"unknown key {key!r}{did_you_mean(key, ('model', *_LISTS))}")
    model, lists = record.get("model"), {name: record.get(name, []) for name in _LISTS}
    if not isinstance(model, str) or not model:
        raise CommandError('"model" is missing; write {"model": "hf:llama", "input": ["int64[1,16]"]}')
    for name, texts in lists.items():
        if not isinstance(texts, list) or not all(isinstance(each, str) for each in texts):
            raise CommandError(f"{name!r} must be a list of strings, as for --{name}")
    return Entry(model, tuple(lists["input"]), tuple(lists["dim"]))
