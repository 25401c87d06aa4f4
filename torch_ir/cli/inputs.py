"""Inputs as they are written on the command line, read without torch.

    float32[1,3,224,224]   x=f32[1,3,224,224]   x:1x3x224x224   1x3x224x224xf32   1x3x224x224
    ids=i64[batch,seq]     i64[1,8]<100         x=@file.pt      @file.npy

A name in place of a size makes that dimension dynamic; `<100` bounds random whole numbers from above.
"""

from __future__ import annotations

import difflib
import keyword
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from torch_ir.errors import CommandError, did_you_mean
from torch_ir.ir.expressions import KEYWORDS
from torch_ir.ir.values import DTYPES

_ALIASES = {
    "f64": "float64", "f32": "float32", "f16": "float16", "bf16": "bfloat16", "i64": "int64", "i32": "int32",
    "i16": "int16", "i8": "int8", "u64": "uint64", "u32": "uint32", "u16": "uint16", "u8": "uint8", "b": "bool",
    "c64": "complex64", "c128": "complex128", "double": "float64", "float": "float32", "half": "float16",
    "long": "int64", "int": "int32",
}  # fmt: skip
_NAMED = re.compile(r"(?:(?P<name>[A-Za-z_][\w.]*)\s*[=:])?\s*(?P<body>.*)", re.DOTALL)
_BRACKETS = re.compile(r"(?P<dtype>\w*)\[(?P<dims>[^\[\]]*)\](?:<(?P<below>\d+))?")
_CROSSES = re.compile(r"(?P<dims>\w+)(?:<(?P<below>\d+))?")
_RANGE = re.compile(r"(?P<name>[A-Za-z_]\w*)=(?:(?P<size>\d+)|(?P<low>\d*)\.\.(?P<high>\d*))")
_DTYPE_LIKE = re.compile(r"(?:bf|float|bfloat|u?int|complex|[fiuc])\d+", re.IGNORECASE)
_HELP = "write it as x=f32[1,3,224,224] or 1x3x224x224"


@dataclass(frozen=True)
class InputSpec:
    """One input: for which argument, and either a file or a dtype and sizes."""

    text: str
    name: str | None = None
    dtype: str = "float32"
    shape: tuple[int | str, ...] = ()
    below: int | None = None
    file: str | None = None


@dataclass(frozen=True)
class DimRange:
    """The sizes that a named dimension may take; without an end, any."""

    low: int | None = None
    high: int | None = None

    @property
    def only(self) -> int | None:
        """The size, if there is just one."""
        return self.low if self.low == self.high else None


def parse_inputs(texts: Iterable[str]) -> list[InputSpec]:
    """Every input, each name once."""
    specs = [parse_input(text) for text in texts]
    names = [spec.name for spec in specs if spec.name]
    for name in names:
        if names.count(name) > 1:
            raise CommandError(f"the input {name!r} is given twice")
    return specs


def parse_input(text: str) -> InputSpec:
    """One input, or a CommandError that names the nearest correct spelling."""
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


def parse_dims(texts: Iterable[str]) -> dict[str, DimRange]:
    """Named sizes: `batch=4`, `batch=1..32`, `batch=2..`."""
    dims: dict[str, DimRange] = {}
    for text in texts:
        match = _RANGE.fullmatch(text.replace(" ", ""))
        if match is None:
            raise CommandError(f"{text!r} is not a size; write it as batch=4 or batch=1..32")
        ends = (match["size"] or match["low"], match["size"] or match["high"])
        low, high = (int(end) if end else None for end in ends)
        if low is not None and high is not None and low > high:
            raise CommandError(f"{text!r} admits no size: {low} is more than {high}")
        if match["name"] in dims:
            raise CommandError(f"the size {match['name']!r} is given twice")
        dims[match["name"]] = DimRange(low, high)
    return dims


def parse_sizes(texts: Iterable[str]) -> dict[str, int]:
    """Named sizes that are one number each: `batch=4`."""
    sizes: dict[str, int] = {}
    for name, dim in parse_dims(texts).items():
        if dim.only is None:
            raise CommandError(f"the size {name!r} must be one number, such as {name}=8")
        sizes[name] = dim.only
    return sizes


def _parse(text: str) -> InputSpec:
    named = _NAMED.fullmatch(text.strip())
    assert named is not None  # the pattern takes everything
    name, body = named["name"], named["body"]
    if body.startswith("@"):
        if len(body) == 1:
            raise CommandError("a file name must follow the @")
        return InputSpec(text, name, file=body[1:])
    body = body.replace(" ", "")
    match = _BRACKETS.fullmatch(body) or _CROSSES.fullmatch(body)
    if match is None:
        raise CommandError(_HELP)
    if "dtype" in match.groupdict():
        dims, dtype = match["dims"].split(",") if match["dims"] else [], match["dtype"] or "float32"
    else:
        dims, dtype = match["dims"].split("x"), "float32"
        if _dtype(dims[-1]) or _DTYPE_LIKE.fullmatch(dims[-1]):
            dtype = dims.pop()
        if not dims:
            raise CommandError(f"it has no sizes; a scalar is written as {dtype}[]")
    below = int(match["below"]) if match["below"] else None
    found = _dtype(dtype)
    if found is None:
        raise CommandError(f"unknown dtype {dtype!r}{did_you_mean(dtype, [*_ALIASES, *DTYPES])}")
    if below is not None and (below < 1 or "int" not in found):
        raise CommandError("the bound after < is for whole numbers, and at least 1")
    return InputSpec(text, name, found, tuple(map(_dim, dims)), below)


def _dtype(word: str) -> str | None:
    word = _ALIASES.get(word, word)
    return word if word in DTYPES else None


def _dim(word: str) -> int | str:
    if word.isdecimal():
        return int(word)
    if not word.isidentifier() or word in KEYWORDS or keyword.iskeyword(word):
        raise CommandError(f"{word!r} is not a size; one that may vary gets a name, as in f32[batch,3]")
    return word


def _respellings(text: str) -> Iterator[str]:
    """What may have been meant: other brackets, commas for crosses, a forgotten bracket, a dtype in other words."""
    if "@" in text:
        return
    plain = text.translate(str.maketrans("(){};\u00d7X*", "[][],xxx")).replace(" ", "").replace("torch.", "")
    yield plain
    yield plain + "]"
    yield re.sub(r"\[(.*)\][:=](\w+)$", r"\2[\1]", plain)
    yield re.sub(r"\[.*\]", lambda found: found.group().replace("x", ","), plain)
    yield plain if "[" in plain else plain.replace(",", "x")
    yield re.sub(r"(\w+)\[", lambda found: _nearest(found[1]) + "[", plain)
    yield re.sub(r"x([A-Za-z]\w*)$", lambda found: "x" + _nearest(found[1]), plain)
    yield re.sub(r":(\w+)$", r"x\1", plain)


def _nearest(word: str) -> str:
    return next(iter(difflib.get_close_matches(word.lower(), [*_ALIASES, *DTYPES], n=1)), word)
