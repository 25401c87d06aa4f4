"""Grammar of names (rule R6): printable on one line, and for some names without quoting."""

from __future__ import annotations

import re
from typing import Any

from torch_ir.errors import GraphError
from torch_ir.ir.checks.limits import allow_more

_QUOTING = re.compile("[\"'`<>\\\\]")
_SYMBOL = re.compile(r"[A-Za-z_]\w{0,99}")


def is_name(name: Any, length: int) -> bool:
    """Whether this is a valid name of a node, tensor or function."""
    if type(name) is str and name.isidentifier():
        return len(name) <= length
    return is_line(name, length) and not _QUOTING.search(name)


def is_line(text: Any, length: int) -> bool:
    """Whether this is a valid name of an operator, argument or weight: a non-empty printable line."""
    return isinstance(text, str) and 0 < len(text) <= length and text.isprintable()


def is_symbol(name: Any) -> bool:
    """Whether this is a valid name of a symbol or mesh axis."""
    return isinstance(name, str) and _SYMBOL.fullmatch(name) is not None


def bad_name(name: Any, message: str, path: str, length: int) -> GraphError:
    """Return the error for a name that is invalid or too long."""
    if isinstance(name, str) and len(name) > length:
        problem = f"a name of {len(name)} characters is longer than {length}"
        return GraphError(problem, path, rule="R2", hint=allow_more("name_length"))
    return GraphError(message, path, rule="R6")
