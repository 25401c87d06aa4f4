"""Read a settings file, .toml or .json, that contains one table."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from torch_ir.errors import SerializationError, first_line
from torch_ir.ir.checks.limits import Limits
from torch_ir.ir.json.json_text import parse_document, read_text


def read_table(path: Path, limits: Limits, what: str) -> dict[str, Any]:
    """Return the table in a file; `what` names the kind of file in errors: `a contract`."""
    text = read_text(path, limits)
    if path.suffix == ".json":
        return parse_document(text, limits)
    if path.suffix != ".toml":
        raise SerializationError(f"{what} must be a .toml or .json file", rule="R1")
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    try:
        return tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise SerializationError(f"not TOML: {first_line(error)}", rule="R1") from None
