"""Numbers as text: `3.63 GB`, `70.6 B parameters`, `2 nodes`, `1.5 ms`."""

from __future__ import annotations

import re

from torch_ir.ir.json.json_fields import Dim

_PREFIXES = ("", "k", "M", "G", "T", "P", "E")
_SMALL = ("", "m", "µ", "n", "p")
_LONG_NUMBER = re.compile(r"\b\d{4,}\b")


def human(amount: Dim | float, unit: str = "") -> str:
    """Format with three digits and a prefix: `3.63 GB`; in an expression, every long number: `3.63G*batch`."""
    if isinstance(amount, str):
        text = _LONG_NUMBER.sub(lambda match: _scaled(int(match[0]), ""), amount)
        return f"{text} {unit}".strip()
    if abs(amount) < 1000 and amount == int(amount):
        return f"{int(amount)} {unit}".strip()
    return f"{_scaled(amount, ' ')}{unit}".strip()


def count(amount: Dim) -> str:
    """Format a number of things, such as parameters: `70.6 B`, with B for a billion."""
    return human(amount).replace("G", "B")


def plural(number: int, noun: str) -> str:
    """Format a number with its noun: `1 node`, `2 nodes`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def parameters_text(number: Dim) -> str:
    """Format a number of parameters: `1 parameter`, `70.6 B parameters`."""
    return f"{count(number)} parameter{'' if number == 1 else 's'}"


def duration(seconds: float) -> str:
    if not seconds:
        return "0"
    power = next((power for power in range(len(_SMALL)) if seconds * 1000**power >= 1), len(_SMALL) - 1)
    return f"{three_digits(seconds * 1000**power)} {_SMALL[power]}s"


def _scaled(number: float, gap: str) -> str:
    power = 0
    while abs(number) >= 999.5 and power < len(_PREFIXES) - 1:
        number, power = number / 1000, power + 1
    return f"{three_digits(number)}{gap}{_PREFIXES[power]}"


def three_digits(number: float) -> str:
    """Format with three digits: 3.63, 36.3, 363."""
    return f"{number:.{2 if number < 9.995 else 1 if number < 99.95 else 0}f}"
