"""Parse the inputs of the command line, without importing torch.

    float32[1,3,224,224]   x=f32[1,3,224,224]   x:1x3x224x224   1x3x224x224xf32   1x3x224x224
    ids=i64[batch,seq]     i64[1,seq<=2048]     f32[8*n,3]      i64[1,8]<100
    x=@file.npy            @inputs.npz          x=@inputs.npz#member
    flag=true   scale=0.5  mask=none            n:=3            mode:="fast"   sizes:=[2,2]

A name in place of a size makes that dimension dynamic; `<100` is the upper bound of random integers. The text after
`:=` is a JSON value, not a tensor.
"""

from __future__ import annotations

import argparse
import difflib
import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from torch_ir.cli.arguments.size_specs import DimRange, parse_dims, parse_size
from torch_ir.errors import CommandError, did_you_mean
from torch_ir.ir.graph.attr_types import DTYPES

ALIASES = {
    "f64": "float64", "f32": "float32", "f16": "float16", "bf16": "bfloat16", "i64": "int64", "i32": "int32",
    "i16": "int16", "i8": "int8", "u64": "uint64", "u32": "uint32", "u16": "uint16", "u8": "uint8", "b": "bool",
    "c64": "complex64", "c128": "complex128", "double": "float64", "float": "float32", "half": "float16",
    "long": "int64", "int": "int32",
}  # fmt: skip
_WORDS = {"true": True, "false": False, "none": None, "null": None}
_NAME = r"(?P<name>[A-Za-z_][\w.]*)"
_JSON = re.compile(rf"{_NAME}\s*:=(?P<json>.*)", re.DOTALL)
_NAMED = re.compile(rf"(?:{_NAME}\s*[=:])?\s*(?P<body>.*)", re.DOTALL)
_NUMBER = re.compile(r"-?(?:\d+\.\d*|\.\d+|\d+(?=[eE]))(?:[eE][+-]?\d+)?|-\d+", re.ASCII)
_BRACKETS = re.compile(r"(?P<dtype>\w*)\[(?P<dims>[^\[\]]*)\](?:<(?P<below>\d+))?")
_CROSSES = re.compile(r"(?P<dims>\w+)(?:<(?P<below>\d+))?")
_DTYPE_LIKE = re.compile(r"(?:bf|float|bfloat|u?int|complex|[fiuc])\d+", re.IGNORECASE)
_SUGGESTED = [*ALIASES, *(dtype for dtype in DTYPES if not re.fullmatch(r"u?int[1-7]", dtype))]
_HELP = "write it as x=f32[1,3,224,224] or 1x3x224x224"


class Nothing:
    """Marker for an input without a value: a tensor still to be created."""


@dataclass(frozen=True)
class InputSpec:
    """One input: its argument, and either a file, a value, or a dtype and sizes with their ranges."""

    text: str
    name: str | None = None
    dtype: str = "float32"
    shape: tuple[int | str, ...] = ()
    below: int | None = None
    file: str | None = None
    value: Any = Nothing
    ranges: tuple[tuple[str, DimRange], ...] = ()

    @property
    def is_plain(self) -> bool:
        """Whether the value is not a tensor but a number, a string or another plain value."""
        return isinstance(self.value, (bool, int, float, str, list, dict, type(None)))

    @property
    def number(self) -> int | None:
        """The number that `n=3` means if the argument takes numbers rather than tensors."""
        body = self.text.rpartition("=" if "=" in self.text else ":")[2].strip()
        return int(body) if body.isascii() and body.isdecimal() else None


def read_inputs(arguments: argparse.Namespace) -> tuple[list[InputSpec], dict[str, DimRange]]:
    """Return the inputs and the ranges of named sizes from `--input` and `--dim`; they must agree."""
    specs, dims = parse_inputs(arguments.input), parse_dims(arguments.dim)
    for name, dim in (pair for spec in specs for pair in spec.ranges):
        if dims.setdefault(name, dim) != dim:
            raise CommandError(f"the size {name!r} has two different ranges; give one")
    return specs, dims


def parse_inputs(texts: Iterable[str]) -> list[InputSpec]:
    """Parse inputs with unique names."""
    specs = [parse_input(text) for text in texts]
    refuse_twins(specs)
    return specs


def refuse_twins(specs: Iterable[InputSpec]) -> None:
    """Raise CommandError if two inputs have the same name."""
    names = [spec.name for spec in specs if spec.name]
    for name in names:
        if names.count(name) > 1:
            raise CommandError(f"the input {name!r} is given twice")


def parse_input(text: str) -> InputSpec:
    """Parse one input, or raise a CommandError that suggests the nearest valid spelling."""
    try:
        return _parse(text)
    except CommandError as error:
        for fixed in _respellings(text):
            try:
                _parse(fixed)
            except CommandError:
                continue
            raise CommandError(f"{text!r} is not an input; did you mean {fixed!r}?") from None
        raise CommandError(f"{text!r} is not an input: {error}") from None


def _parse(text: str) -> InputSpec:
    literal = _JSON.fullmatch(text.strip())
    if literal is not None:
        return InputSpec(text, literal["name"], value=_from_json(literal["json"]))
    named = _NAMED.fullmatch(text.strip())
    assert named is not None  # the pattern takes everything
    name, body = named["name"], named["body"]
    if body.startswith("@"):
        if len(body) == 1:
            raise CommandError("a file name must follow the @")
        return InputSpec(text, name, file=body[1:])
    body = body.replace(" ", "")
    if body.lower() in _WORDS:
        return InputSpec(text, name, value=_WORDS[body.lower()])
    if _NUMBER.fullmatch(body):
        return InputSpec(text, name, value=int(body) if body.removeprefix("-").isdecimal() else float(body))
    return _tensor(text, name, body)


def _from_json(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise CommandError("expected a JSON value after :=, such as n:=3, flag:=true or mode:='\"fast\"'") from None


def _tensor(text: str, name: str | None, body: str) -> InputSpec:
    match = _BRACKETS.fullmatch(body) or _CROSSES.fullmatch(body)
    if match is None:
        raise CommandError(_HELP)
    if "dtype" in match.groupdict():
        words, dtype = match["dims"].split(",") if match["dims"] else [], match["dtype"] or "float32"
    else:
        words, dtype = match["dims"].split("x"), "float32"
        if _dtype(words[-1]) or _DTYPE_LIKE.fullmatch(words[-1]):
            dtype = words.pop()
        if not words:
            raise CommandError(f"sizes are missing; write a scalar as {dtype}[]")
    below = int(match["below"]) if match["below"] else None
    found = _dtype(dtype)
    if found is None:
        raise CommandError(f"unknown dtype {dtype!r}{did_you_mean(dtype, [*ALIASES, *DTYPES])}")
    if below is not None and (below < 1 or "int" not in found):
        raise CommandError("the bound after < applies to integer dtypes only and must be at least 1")
    sizes = [parse_size(word) for word in words]
    ranges = tuple((str(size), dim) for size, dim in sizes if dim is not None)
    return InputSpec(text, name, found, tuple(size for size, _ in sizes), below, ranges=ranges)


def _dtype(word: str) -> str | None:
    word = ALIASES.get(word, word)
    return word if word in DTYPES else None


def _respellings(text: str) -> Iterator[str]:
    """Yield candidates: other brackets, commas for crosses, a missing bracket, the nearest dtype, another order."""
    if "@" in text or ":=" in text:
        return
    plain = text.translate(str.maketrans("(){};\u00d7X", "[][],xx")).replace(" ", "").replace("torch.", "")
    plain = plain.replace("*", "," if "[" in plain else "x")
    yield plain
    yield plain + "]"
    yield re.sub(r"\[(.*)\][:=](\w+)$", r"\2[\1]", plain)
    yield re.sub(r"\[.*\]", lambda found: found.group().replace("x", ","), plain)
    yield plain if "[" in plain else plain.replace(",", "x")
    yield re.sub(r"(\w+)\[", lambda found: _nearest(found[1]) + "[", plain)
    yield re.sub(r"x([A-Za-z]\w*)$", lambda found: "x" + _nearest(found[1]), plain)
    yield re.sub(r":(\w+)$", r"x\1", plain)


def _nearest(word: str) -> str:
    return next(iter(difflib.get_close_matches(word.lower(), _SUGGESTED, n=1)), word)
