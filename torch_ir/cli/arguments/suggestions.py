"""Suggest valid spellings of an input that cannot be parsed."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator

from torch_ir.cli.arguments.input_specs import ALIASES
from torch_ir.ir.graph.attr_types import DTYPES

_DTYPES = [*ALIASES, *(dtype for dtype in DTYPES if not re.fullmatch(r"u?int[1-7]", dtype))]  # worth suggesting


def respellings(text: str) -> Iterator[str]:
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
    return next(iter(difflib.get_close_matches(word.lower(), _DTYPES, n=1)), word)
