"""Cursor within one line of the text form; its errors name line and column."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator

from torch_ir.errors import SerializationError
from torch_ir.ir.json.json_values import MAX_DIGITS

_PLAIN = {"'": re.compile(r"[^'\\]*"), '"': re.compile(r'[^"\\]*')}  # runs without escapes, by quote
_ESCAPE = re.compile(r"\\(?:x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|.)?")
_ESCAPED = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "\\": "\\", "'": "'", '"': '"', "/": "/"}
_INTEGER = re.compile(r"-?[0-9]+")
_SURROGATE = re.compile("[\ud800-\udfff]")
_SHOWN = 20  # characters quoted in an error


class Cursor:
    """Reads one line from left to right, skipping blanks between words."""

    __slots__ = ("at", "line", "number")

    def __init__(self, line: str, number: int) -> None:
        self.line, self.number, self.at = line, number, 0
        self.skip()

    def skip(self) -> None:
        """Advance to the next character that is not a blank."""
        line, at = self.line, self.at
        while at < len(line) and line[at] == " ":
            at += 1
        self.at = at

    @property
    def is_done(self) -> bool:
        return self.at >= len(self.line)

    def is_next(self, *texts: str) -> bool:
        return self.line.startswith(texts, self.at)

    def take(self, text: str) -> bool:
        """Consume `text` if it comes next."""
        if not self.line.startswith(text, self.at):
            return False
        self.at += len(text)
        self.skip()
        return True

    def expect(self, text: str) -> None:
        if not self.take(text):
            raise self.expected(repr(text))

    def match(self, pattern: re.Pattern[str]) -> str | None:
        """Consume and return the text that the pattern matches here, if any, with the blanks after it."""
        found = pattern.match(self.line, self.at)
        if found is None:
            return None
        self.at = found.end()
        self.skip()
        return found.group()

    def items(self, closing: str) -> Iterator[None]:
        """Stop at each item of a list that is separated by commas, and consume its closing bracket."""
        while not self.take(closing):
            yield
            if not self.take(",") and not self.is_next(closing):
                raise self.expected(f"',' or {closing!r}")

    def end(self) -> None:
        if not self.is_done:
            raise self.expected("the end of the line")

    def name(self, pattern: re.Pattern[str], what: str) -> str:
        """Read a bare or quoted name."""
        found = self.quoted() if self.is_next("`") else self.match(pattern)
        if found is None:
            raise self.expected(what)
        return found

    def quoted(self) -> str:
        """Read a name in backquotes."""
        end = self.line.find("`", self.at + 1)
        while end >= 0 and self.line.startswith("``", end):
            end = self.line.find("`", end + 2)
        if end < 0:
            raise self.error("the backquote is never closed")
        found = self.line[self.at + 1 : end]
        self.at = end + 1
        self.skip()
        return found.replace("``", "`")

    def string(self) -> str:
        """Read a quoted string with Python's escapes."""
        line, start = self.line, self.at
        quote = line[start : start + 1]
        if quote not in _PLAIN:
            raise self.expected("a string in quotes")
        pieces: list[str] = []
        while True:
            self.at += 1
            pieces.append(self._matched(_PLAIN[quote]))
            if self.is_next(quote):
                break
            pieces.append(self._escaped(start))
        self.at += 1
        self.skip()
        text = "".join(pieces)
        if _SURROGATE.search(text):
            raise self.error("a string holds half of a surrogate pair", start, rule="R3")
        return text

    def _matched(self, pattern: re.Pattern[str]) -> str:
        found = pattern.match(self.line, self.at)
        self.at = found.end() if found else self.at
        return found.group() if found else ""

    def _escaped(self, start: int) -> str:
        """Return the character of an escape sequence, and stop at its last character."""
        if self.is_done:
            raise self.error("the string is never closed", start)
        escape = self._matched(_ESCAPE)[1:]
        self.at -= 1
        if escape in _ESCAPED:
            return _ESCAPED[escape]
        code = int(escape[1:], 16) if len(escape) > 1 else sys.maxunicode + 1
        if code > sys.maxunicode:
            raise self.error("unknown escape in a string", start)
        return chr(code)

    def integer(self, what: str = "a whole number") -> int:
        start = self.at
        found = self.match(_INTEGER)
        if found is None:
            raise self.expected(what)
        return self.whole(found, start)

    def whole(self, digits: str, start: int) -> int:
        """Convert digits to a number; untrusted text may have very many."""
        if len(digits) > MAX_DIGITS + 1:
            raise self.error(f"a whole number has more than {MAX_DIGITS} digits", start, rule="R3")
        return int(digits)

    def expected(self, what: str) -> SerializationError:
        found = repr(self.line[self.at : self.at + _SHOWN]) if not self.is_done else "the end of the line"
        return self.error(f"expected {what}, found {found}")

    def error(self, message: str, at: int | None = None, *, rule: str = "R1", hint: str = "") -> SerializationError:
        return SerializationError(message, place(self.number, self.at if at is None else at), rule=rule, hint=hint)


def place(number: int, at: int) -> str:
    """Return the position for an error's `path`; lines and columns count from 1."""
    return f"line {number}, column {at + 1}"
