"""Escape text from a file for another language, so that it is displayed and never interpreted: one function each.

`errors.printable` escapes text for a terminal.
"""

from __future__ import annotations

import html
import json
import re
import shlex
from typing import Any

_MARKDOWN = re.compile(r"([\\`*_\[\]|~])")
_ADDRESSED = re.compile(r"[@#]\w|://|www\.", re.IGNORECASE)  # code hosts turn these into mentions, issues and links
_MERMAID = re.compile(r"[^\w\xd7 .,:;()\[\]+*/=!?@~^|'-]")
_NOT_PLAIN = re.compile(r"^[.-]|[^A-Za-z0-9_.-]")
_MLIR = frozenset(range(0x20, 0x7F)) - frozenset(b'"\\')


def one_line(text: str) -> str:
    """Replace control characters, line ends and bidirectional overrides by blanks."""
    return "".join(character if character.isprintable() else " " for character in text)


def in_html(text: str) -> str:
    """Escape text for an HTML element or a quoted attribute; line breaks are kept."""
    return html.escape("\n".join(map(one_line, text.split("\n"))))


def in_dot_label(text: str) -> str:
    """Escape text for an HTML-like label of DOT, where an empty cell is an error."""
    return html.escape(one_line(text), quote=False) or "&#160;"


def in_dot_string(text: str) -> str:
    """Quote text as a DOT string."""
    return '"' + one_line(text).replace("\\", "\\\\").replace('"', '\\"') + '"'


def in_markdown(text: str) -> str:
    """Escape text for a line or table cell: no HTML, emphasis, cell separators, links or user mentions."""
    shown = _MARKDOWN.sub(r"\\\1", html.escape(one_line(text), quote=False))
    return f"<code>{shown}</code>" if _ADDRESSED.search(text) else shown


def as_markdown_block(text: str, language: str) -> str:
    """Fence text with more tildes than it contains, so that it cannot close the block."""
    fence = "~" * max(4, 1 + max(map(len, re.findall("~+", text)), default=0))
    return f"{fence}{language}\n{text}\n{fence}"


def in_mermaid(text: str) -> str:
    """Escape text for a quoted Mermaid label."""
    text = _MERMAID.sub(lambda found: f"#{ord(found.group())};", " ".join(text.split()))
    return text.replace("direction ", "direction#32;")  # Mermaid parses `direction TB` as a statement even in quotes


def in_mlir(text: str) -> str:
    """Quote text as an MLIR string."""
    return '"' + "".join(chr(b) if b in _MLIR else f"\\{b:02X}" for b in text.encode("utf-8", "replace")) + '"'


def in_python(text: str) -> str:
    """Write text as a one-line Python comment; values are written by `repr`."""
    return f"# {text if text.isprintable() else ascii(text)}"


def in_yaml(value: Any) -> str:
    """Write JSON values as one line of YAML, in which an escape is one character, not half of a surrogate pair."""
    text = json.dumps(value, ensure_ascii=False)
    return "".join(character if character.isprintable() else f"\\U{ord(character):08x}" for character in text)


def as_plain_name(text: str) -> str:
    """Write text as a cell of CSV or a file name: ASCII letters and digits, and not a formula or a hidden file."""
    return _NOT_PLAIN.sub("_", text) or "_"


def in_shell(text: str) -> str:
    """Quote text as one word of a shell command."""
    return shlex.quote(one_line(text))
