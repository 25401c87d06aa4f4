"""Memory sizes on the command line."""

from __future__ import annotations

import re

from torch_ir.errors import CommandError

_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


def parse_bytes(text: str) -> int:
    """Return the number of bytes in `4GB`, `512 MB` or `1000000`."""
    found = re.fullmatch(r"(\d{1,18}(?:\.\d{1,9})?)\s*([KMGT]?)(?:i?B)?", text.strip(), re.IGNORECASE | re.ASCII)
    if found is None:
        raise CommandError(f"{text!r:.60} is not a memory size; write 512MB, 4GB or a number of bytes")
    return int(float(found[1]) * _UNITS[found[2].upper()])
