"""Text of a file in another language, where it must show as itself and mean nothing: one function per language.

What a terminal shows is `errors.printable`.
"""

from __future__ import annotations

import html
import re
import shlex

_MARKDOWN = re.compile(r"([\\`*_\[\]|~])")
_ADDRESSED = re.compile(r"[@#]\w|://|www\.", re.IGNORECASE)  # what a code host makes a mention, an issue or a link
_MERMAID = re.compile(r"[^\w\xd7 .,:;()\[\]+*/=!?@~^|'-]")
_MLIR = frozenset(range(0x20, 0x7F)) - frozenset(b'"\\')


def one_line(text: str) -> str:
    """Text with blanks in the place of controls, of line ends, and of what turns text around."""
    return "".join(character if character.isprintable() else " " for character in text)


def in_html(text: str) -> str:
    """Text in an element or in an attribute with quotes; its lines stay."""
    return html.escape("\n".join(map(one_line, text.split("\n"))))


def in_dot_label(text: str) -> str:
    """Text in an HTML-like label of DOT, where an empty cell is an error."""
    return html.escape(one_line(text), quote=False) or "&#160;"


def in_dot_string(text: str) -> str:
    """Text as a string of DOT, with its quotes."""
    return '"' + one_line(text).replace("\\", "\\\\").replace('"', '\\"') + '"'


def in_markdown(text: str) -> str:
    """Text in a line or a cell of a table: no HTML, emphasis or further cells, and nobody is mentioned or linked to."""
    shown = _MARKDOWN.sub(r"\\\1", html.escape(one_line(text), quote=False))
    return f"<code>{shown}</code>" if _ADDRESSED.search(text) else shown


def as_markdown_block(text: str, language: str) -> str:
    """Lines in a fence that none of them can end."""
    fence = "~" * max(4, 1 + max(map(len, re.findall("~+", text)), default=0))
    return f"{fence}{language}\n{text}\n{fence}"


def in_mermaid(text: str) -> str:
    """Text in a quoted label."""
    text = _MERMAID.sub(lambda found: f"#{ord(found.group())};", " ".join(text.split()))
    return text.replace("direction ", "direction#32;")  # Mermaid takes `direction TB` as an order even in quotes


def in_mlir(text: str) -> str:
    """Text as a string of MLIR, with its quotes."""
    return '"' + "".join(chr(b) if b in _MLIR else f"\\{b:02X}" for b in text.encode("utf-8", "replace")) + '"'


def in_python(text: str) -> str:
    """Text as a comment of Python that stays in its line; values are written by `repr`."""
    return f"# {text if text.isprintable() else ascii(text)}"


def in_shell(text: str) -> str:
    """Text as one word of a command that a user may copy."""
    return shlex.quote(one_line(text))
