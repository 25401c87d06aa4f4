"""The text of the file: parse strict JSON, write canonical bytes."""

from __future__ import annotations

import json
import math
import os
import re
from collections import Counter as Tally
from typing import Any

from torch_ir.errors import MissingFileError, SerializationError
from torch_ir.ir.checks.limits import Counter, Limits, allow_more
from torch_ir.ir.files.regular_file import IrregularFileError, TooLargeError, read_regular
from torch_ir.ir.json.digest import StatedDigest, digest_of, stated_digest

_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
_NODES = '\n"nodes": [\n'
_NODE_DEPTH = 2  # levels of brackets around a node
_PIECE_DEPTH = 60  # levels of brackets in a piece of a node's line
_PER_LINE = frozenset(("graph_inputs", "graph_outputs", "weights", "nodes"))
_SQUARE = bytes.maketrans(b"{}", b"[]")
_NEITHER_QUOTE_NOR_BRACKET = bytes(set(range(256)) - set(b'"[]{}'))
_BLANKS = (b" ", b"\n", b"\t", b"\r")
_PIECE = 1 << 20  # bytes
_LONGEST_SIGN = 32  # bytes that identify a large number
_MEMORY = {b",": 40, b'"': 24, b"[": 96, b"{": 96, b":": 216}  # bytes that the parser allocates for each, at most
_KEYS = b"name shape dtype kind op_type inputs outputs producer_node producer_output_idx attrs args module".split()
_KNOWN_KEY = 208  # bytes that it allocates less for a key that it has seen
_VALUE_BYTES = 24  # limit on the average of these bytes over all values that `Limits.values` allows
_ALL_DIGITS_ALIKE = bytes.maketrans(b"123456789E", b"000000000e")
_dump = json.JSONEncoder(ensure_ascii=False, allow_nan=False, check_circular=False).encode  # nothing here is circular


class Lines(list[str]):
    """Records that are already JSON text."""


def write_document(document: dict[str, Any]) -> str:
    """Return canonical text: a line per key, a line per record of the long lists, and a digest at the end."""
    try:
        body = ",\n".join(f'"{key}": {_write_entry(key, value)}' for key, value in document.items())
        digest = digest_of(body.encode())
    except (TypeError, ValueError) as error:  # a name that is not a string, or half of a surrogate pair
        raise SerializationError(f"cannot be written as JSON: {error}", rule="R17") from None
    return f'{{\n{body},\n"digest": "{digest}"\n}}\n'


def _write_entry(key: str, value: Any) -> str:
    if key in _PER_LINE and value:
        return "[\n" + ",\n".join(value if type(value) is Lines else map(_dump, value)) + "\n]"
    return _dump(value)


def parse_document(text: str, limits: Limits = Limits()) -> dict[str, Any]:
    """Parse the document in `text`; raise SerializationError if it is invalid."""
    raw, digest = _encode(text)
    check_count(raw, limits)
    _check_memory(raw, limits)
    _check_depth(raw, limits.depth)
    document = _parse(text, raw, None if digest is None else digest.start)
    if not isinstance(document, dict):
        raise SerializationError("expected a JSON object", "$", rule="R1")
    if _SURROGATE.search(raw):
        _check_surrogates(document)
    _check_digest(document, raw, digest)
    return document


def parse_around_nodes(text: str, limits: Limits) -> tuple[dict[str, Any], list[str]] | None:
    """Return the document without its nodes, and their lines, each with a comma; None if the text is not canonical."""
    raw, digest = _encode(text)
    start, end = text.find(_NODES), text.rfind("\n]")  # nodes are the last of the long lists
    if not 0 <= start < end or b"\\" in raw or limits.depth < _NODE_DEPTH + _PIECE_DEPTH:
        return None
    check_count(raw, limits)
    around = f'{text[:start]}\n"nodes": "lines"{text[end + 2 :]}'
    encoded = around.encode()
    _check_memory(encoded, limits)
    _check_depth(encoded, limits.depth)
    document = _parse(around, encoded)
    if not isinstance(document, dict) or document.pop("nodes", None) != "lines":
        return None
    _check_digest(document, raw, digest)
    return document, f"{text[start + len(_NODES) : end]},".split("\n")


def parse_json(text: str) -> Any:
    """Parse strict JSON that is not deeply nested, such as a piece of a node's line."""
    raw = text.encode()
    if len(raw) > _PIECE:  # the header of a checkpoint, or an index of shards
        _check_memory(raw, Limits())
    _check_depth(raw, _PIECE_DEPTH)
    return _parse(text, raw)


def _encode(text: str) -> tuple[bytes, StatedDigest | None]:
    """Return the text as bytes, and the digest at their end."""
    if not isinstance(text, str):
        raise SerializationError(f"expected text, found {type(text).__name__}", "$", rule="R1")
    try:
        raw = text.encode()
    except UnicodeEncodeError:
        raise SerializationError("the text is not valid Unicode", "$", rule="R1") from None
    if text.startswith("\ufeff"):
        raise SerializationError("not JSON: Unexpected UTF-8 BOM at line 1, column 1", "$", rule="R1")
    return raw, stated_digest(raw)


def _parse(text: str, raw: bytes, end: int | None = None) -> Any:
    """Parse strict JSON; the bytes from `end` on contain no numbers."""
    decoder = _WITH_NUMBERS if _may_hold_large_numbers(raw, end) else _STRICT
    try:
        return decoder.decode(text)
    except json.JSONDecodeError as error:
        message = f"not JSON: {error.msg.removesuffix(' at')} at line {error.lineno}, column {error.colno}"
        raise SerializationError(message, "$", rule="R3") from None


def _check_digest(document: dict[str, Any], raw: bytes, digest: StatedDigest | None) -> None:
    """Remove the digest from the document, and check that it matches the text."""
    if "digest" not in document:
        return
    stated = document.pop("digest")
    if digest is None or stated != digest_of(memoryview(raw)[2 : digest.start]):
        hint = "if that was intended, delete the digest line"
        raise SerializationError(
            "digest mismatch: the file was modified after it was saved", "$.digest", rule="R17", hint=hint
        )


def check_count(raw: bytes, limits: Limits) -> None:
    """Refuse too many blanks or values before the parser creates them.

    Each value follows a comma or an opening bracket.
    """
    counter = Counter(limits)
    counter.add("values", raw.count(b",") + raw.count(b"[") + raw.count(b"{"), "$")
    counter.add("blanks", sum(map(raw.count, _BLANKS)), "$")


def _check_memory(raw: bytes, limits: Limits) -> None:
    """Refuse a text whose values may take too much memory once parsed; signs in strings count, too."""
    memory, limit = sum(raw.count(sign) * size for sign, size in _MEMORY.items()), limits.values * _VALUE_BYTES
    if memory > limit and b"\\" not in raw:  # otherwise these may be the ends of other keys
        memory -= sum(raw.count(b'"%s":' % key) for key in _KEYS) * _KNOWN_KEY
    if memory > limit:
        message = f"parsing takes up to {memory} bytes of memory, more than {limit}"
        raise SerializationError(message, "$", rule="R2", hint=allow_more("values"))


def _check_depth(raw: bytes, limit: int) -> None:
    """Refuse deep nesting before the parser recurses, by removing one level of brackets at a time."""
    if raw.count(b"[") + raw.count(b"{") <= limit:
        return
    brackets, too_deep = _brackets(raw), b"[" * (limit + 1)
    for _ in range(limit):
        if b"[]" not in brackets or too_deep in brackets:
            break
        brackets = brackets.replace(b"[]", b"")
    if b"[]" in brackets or brackets.count(b"[") > limit:
        raise SerializationError(f"nested deeper than {limit} levels", "$", rule="R2", hint=allow_more("depth"))


def _brackets(raw: bytes) -> bytes:
    """Return the brackets outside strings, all as square brackets."""
    if b"\\" in raw:
        raw = raw.replace(b"\\\\", b"").replace(b'\\"', b"")
    # only the quotes of a string are left, and removing pairs of quotes keeps inside and outside apart
    left = raw.translate(_SQUARE, _NEITHER_QUOTE_NOR_BRACKET).replace(b'""', b"")
    return b"".join(left.split(b'"')[::2])


def _may_hold_large_numbers(raw: bytes, end: int | None) -> bool:
    """Whether any run of digits could exceed int64, or any exponent the range of a float; strings count, too.

    Works on overlapping pieces, to avoid a second copy of a large file.
    """
    for start in range(0, len(raw) if end is None else end, _PIECE):
        alike = raw[start : start + _PIECE + _LONGEST_SIGN].translate(_ALL_DIGITS_ALIKE, b"+")
        if b"0" * 19 in alike or b"0e000" in alike:
            return True
    return False


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        twice = Tally(key for key, _ in pairs).most_common(1)[0][0]
        raise SerializationError(f"duplicate key {twice!r:.60}", "$", rule="R3")
    return found


def _no_constant(text: str) -> Any:
    hint = "special floats are written as {'$float': ...}"
    raise SerializationError(f"{text} is not JSON", "$", rule="R3", hint=hint)


def _int64(text: str) -> int:
    if len(text) > 20 or not -(1 << 63) <= int(text) < 1 << 63:
        raise SerializationError(f"{text[:40]} does not fit 64 bits", "$", rule="R3")
    return int(text)


def _finite(text: str) -> float:
    if not math.isfinite(value := float(text)):
        raise SerializationError(f"{text[:40]} is too large for a float", "$", rule="R3")
    return value


_STRICT = json.JSONDecoder(object_pairs_hook=_object, parse_constant=_no_constant)
_WITH_NUMBERS = json.JSONDecoder(
    object_pairs_hook=_object, parse_constant=_no_constant, parse_int=_int64, parse_float=_finite
)


def _check_surrogates(document: dict[str, Any]) -> None:
    try:
        json.dumps(document, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise SerializationError("a string holds half of a surrogate pair", "$", rule="R3") from None


def read_text(path: str | os.PathLike[str], limits: Limits = Limits(), *, follow: bool = True) -> str:
    """Read the text of a file; refuse one that is too large, or a link unless `follow`."""
    return decode_text(read_bytes(path, limits, follow=follow), path)


def decode_text(data: bytes, path: str | os.PathLike[str]) -> str:
    """Return the bytes of a file as text; an error names the file and the first byte that is not UTF-8."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        message = f"{os.fspath(path)} is not UTF-8 text (byte {error.start})"
        raise SerializationError(message, rule="R1") from None


def read_bytes(path: str | os.PathLike[str], limits: Limits = Limits(), *, follow: bool = True) -> bytes:
    """Read the bytes of a regular file; refuse one that is too large."""
    try:
        return read_regular(path, limits.file_bytes, follow=follow)
    except IrregularFileError as error:
        raise SerializationError(f"{os.fspath(path)} {error.strerror}", rule="R1") from None
    except TooLargeError as error:
        raise SerializationError(
            f"{os.fspath(path)}: {error.strerror}", rule="R2", hint=allow_more("file_bytes")
        ) from None
    except OSError as error:
        kind = MissingFileError if isinstance(error, FileNotFoundError) else SerializationError
        raise kind(f"cannot read {os.fspath(path)}: {error.strerror or error}") from None
