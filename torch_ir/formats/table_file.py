"""Read a settings file, .toml or .json, that contains one table."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

from torch_ir.errors import SerializationError, first_line
from torch_ir.ir.checks.limits import Limits
from torch_ir.ir.json.json_text import parse_document, read_text

_MOST_TOML = 1 << 22  # bytes; JSON, which takes less memory to parse, may be larger
_MOST_STEPS = 20  # of a dotted key: the parser takes time that grows with the cube of their number
_TEXT = re.compile(  # strings and comments; one that does not end reaches to the end of the text or line
    r'''
    """(?:[^"\\]+|\\.|"(?!""))*(?:"""|\\?\Z)  |  \'{3}.*?(?:\'{3}|\Z)  |
    "(?:[^"\\\n]+|\\.)*"?  |  \'[^\'\n]*\'?  |  \#[^\n]*
    ''',
    re.DOTALL | re.VERBOSE,
)
_LONG_KEY = re.compile(rf"(?<![\w-])(?:[\w-]+[ \t]*\.[ \t]*){{{_MOST_STEPS}}}")


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
    if len(text) > _MOST_TOML:
        raise SerializationError(f"more than {_MOST_TOML} characters of TOML; write it as JSON", rule="R2")
    if _LONG_KEY.search(_TEXT.sub("_", text)):
        raise SerializationError(f"a key has more than {_MOST_STEPS} steps", rule="R2")
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # ValueError: not TOML, or a number of thousands of digits
        raise SerializationError(f"not TOML: {first_line(error)}", rule="R1") from None
