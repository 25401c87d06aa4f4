"""Parse sizes of the command line, without importing torch: fixed, named, bounded, or an affine function of a name.

8   batch   seq<=2048   seq>=2   2<=seq<=2048   batch=1..32   8*n   2*n+1
"""

from __future__ import annotations

import keyword
import re
from collections.abc import Iterable
from dataclasses import dataclass

from torch_ir.errors import CommandError
from torch_ir.ir.sizes.expressions import KEYWORDS

_RANGE = re.compile(r"(?P<name>[A-Za-z_]\w*)=(?:(?P<size>\d+)|(?P<low>\d*)\.\.(?P<high>\d*))", re.ASCII)
_BOUNDED = re.compile(
    r"(?:(?P<low>\d+)(?P<above><=?))?(?P<name>[A-Za-z_]\w*)(?:(?P<sign><=?|>=?)(?P<high>\d+))?", re.ASCII
)
_AFFINE = re.compile(r"(?:(?P<times>\d+)\*)?(?P<name>[A-Za-z_]\w*)(?:\*(?P<by>\d+))?(?P<plus>[+-]\d+)?", re.ASCII)


@dataclass(frozen=True)
class DimRange:
    """The range of a named dimension; None means unbounded."""

    low: int | None = None
    high: int | None = None

    @property
    def only(self) -> int | None:
        """The size, if the range contains exactly one."""
        return self.low if self.low == self.high else None


@dataclass(frozen=True)
class Affine:
    """A size computed from a named one: `times * name + plus`."""

    name: str
    times: int = 1
    plus: int = 0

    def __str__(self) -> str:
        scaled = self.name if self.times == 1 else f"{self.times}*{self.name}"
        return f"{scaled}{self.plus:+d}" if self.plus else scaled


def parse_dims(texts: Iterable[str]) -> dict[str, DimRange]:
    """Parse named sizes: `batch=4`, `batch=1..32`, `batch=2..`."""
    dims: dict[str, DimRange] = {}
    for text in texts:
        name, dim = _parse_range(text.replace(" ", ""), text)
        if name in dims:
            raise CommandError(f"the size {name!r} is given twice")
        dims[name] = dim
    return dims


def parse_sizes(texts: Iterable[str]) -> dict[str, int]:
    """Parse named sizes that must be one number each: `batch=4`."""
    sizes: dict[str, int] = {}
    for name, dim in parse_dims(texts).items():
        if dim.only is None:
            raise CommandError(f"the size {name!r} must be one number, such as {name}=8")
        sizes[name] = dim.only
    return sizes


def parse_size(word: str) -> tuple[int | str, DimRange | None]:
    """Parse one size of an input; return it and the range of its name, if given."""
    if word.isascii() and word.isdecimal():
        return int(word), None
    if ".." in word:
        return _parse_range(word, word)
    found = _BOUNDED.fullmatch(word)
    if found is not None:
        name, dim = _checked(found["name"], word), _bounds(found)
        return name, dim if found["low"] or found["high"] else None
    affine = parse_affine(word)
    if affine is None:
        raise CommandError(f"{word!r} is not a size; name a dynamic size, as in f32[batch,3]")
    return str(affine), None


def parse_affine(word: str) -> Affine | None:
    """Parse `8*n`, `n*8`, `2*n+1` or `n`; return None for anything else."""
    found = _AFFINE.fullmatch(word)
    if found is None or (found["times"] and found["by"]):
        return None
    times = int(found["times"] or found["by"] or 1)
    if times < 1:
        raise CommandError(f"{word!r} is not a size: it does not depend on {found['name']}")
    return Affine(_checked(found["name"], word), times, int(found["plus"] or 0))


def _bounds(found: re.Match[str]) -> DimRange:
    low = int(found["low"]) + (found["above"] == "<") if found["low"] else None
    high = int(found["high"]) if found["high"] else None
    if high is not None and found["sign"].startswith(">"):
        if low is not None:
            raise CommandError(f"{found[0]!r} has two lower bounds; write 2<=seq<=2048")
        return DimRange(high + (found["sign"] == ">"))
    if high is not None:
        high -= found["sign"] == "<"
    return _not_empty(DimRange(low, high), found[0])


def _parse_range(word: str, text: str) -> tuple[str, DimRange]:
    match = _RANGE.fullmatch(word)
    if match is None:
        raise CommandError(f"{text!r} is not a size; write it as batch=4 or batch=1..32")
    ends = (match["size"] or match["low"], match["size"] or match["high"])
    low, high = (int(end) if end else None for end in ends)
    return _checked(match["name"], text), _not_empty(DimRange(low, high), text)


def _not_empty(dim: DimRange, text: str) -> DimRange:
    if dim.high is not None and (dim.low or 0) > dim.high:
        raise CommandError(f"{text!r} is an empty range of sizes: {dim.low or 0} is more than {dim.high}")
    return dim


def _checked(name: str, word: str) -> str:
    if name in KEYWORDS or keyword.iskeyword(name):
        raise CommandError(f"{word!r} is not a size: {name!r} is reserved; choose another name")
    return name
