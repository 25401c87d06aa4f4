"""Detect what a file is that is not a graph, for a better error message."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from traceback import clear_frames
from typing import Any

from torch_ir.errors import MissingFileError, MistakenFileError, SerializationError
from torch_ir.ir.checks.limits import Limits
from torch_ir.ir.json.encode import FORMAT
from torch_ir.ir.json.gzip_text import MAGIC, first_bytes, read_graph_text
from torch_ir.ir.json.json_text import parse_document

_OPENINGS = {
    b"\x89PNG\r\n\x1a\n": "a PNG picture",
    b"\xff\xd8\xff": "a JPEG picture",
    b"GIF8": "a GIF picture",
    b"%PDF-": "a PDF document",
    b"PK\x03\x04": "a zip archive, as checkpoints in .pt and programs in .pt2 are",
    b"\x80\x02": "a pickle, as old checkpoints are",
    b"\x7fELF": "a program or library",
    b"\x93NUMPY": "an array of NumPy",
    b"<": "HTML, SVG or other XML",
    b"ML\xefR": "MLIR bytecode",
}
_MESSAGE = b"\x0a%c%s" % (len(FORMAT), FORMAT.encode())  # start of a graph in protobuf: field 1, the format
_ONNX = b"\x08"  # field 1 of its protobuf message, a number
_HEAD = 4096  # bytes read to detect the type
_HEADER_LENGTH = 8  # bytes of the length field at the start of a safetensors file
_OTHERS = {  # by their keys
    ("target", "layers", "missing"): "the layers of a target, which `torch-ir lower` wrote",
    ("weight_map",): "the index of a checkpoint",
    ("model_type",): "a configuration of transformers",
}
_JSON = "is JSON, but not a torch-ir graph"
_GRAPH_KEYS = ("nodes", "graph_inputs", "graph_outputs")
_VALUES = {"[": "a list", '"': "a string"}  # by first character


@contextmanager
def sniffed_errors(path: str | os.PathLike[str], limits: Limits, *, is_json: bool) -> Iterator[None]:
    """If reading a graph fails and the file is not a graph at all, replace the error by one that says what it is."""
    try:
        yield
    except MissingFileError:
        raise
    except SerializationError as error:
        if error.rule == "R2":  # over a limit: too large to read again
            raise
        clear_frames(error.__traceback__)  # they hold the text, which is read again
        message = _what_else(path, limits, is_json)
        if not message:
            raise
        raise MistakenFileError(f"{os.fspath(path)} {message}", error.path, rule=error.rule) from None


def _what_else(path: str | os.PathLike[str], limits: Limits, is_json: bool) -> str:
    """Return what a file is if it is not a graph, or not of the type its name says; empty if unknown."""
    if os.path.isdir(path):
        return "is a folder, not a graph file"
    if not os.path.isfile(path):  # do not open a pipe, which may block
        return ""
    try:
        with open(path, "rb") as file:
            head = file.read(_HEAD)
    except OSError:
        return ""
    if head.startswith(MAGIC) and first_bytes(head).lstrip()[:1] not in (b"", b"{"):
        return "is a gzip archive, not a torch-ir graph"
    if not head:
        return "is empty"
    if os.fspath(path).lower().endswith(".onnx") and head.startswith(_ONNX):
        return "is an ONNX file, which torch_ir writes but does not read"
    if kind := next((kind for opening, kind in _OPENINGS.items() if head.startswith(opening)), ""):
        return f"is {kind}, not a torch-ir graph"
    if head[_HEADER_LENGTH:].startswith(b'{"') and b"\0" in head[:_HEADER_LENGTH]:
        return "is a safetensors file, which holds weights, not a torch-ir graph"
    if is_json and head.startswith(_MESSAGE):
        return "is a graph in protobuf; its name must end in .pb or .binpb"
    return _what_json(path, limits, is_json)


def _what_json(path: str | os.PathLike[str], limits: Limits, is_json: bool) -> str:
    try:
        text = read_graph_text(path, limits)
    except SerializationError:
        return ""
    if not text.strip():
        return "contains only whitespace"
    try:
        document = parse_document(text, limits)
    except SerializationError as error:
        is_value = error.rule == "R1" and not text.startswith("\ufeff")
        return f"{_JSON}: it holds {_VALUES.get(text.lstrip()[0], 'one value')}" if is_value else ""
    if document.get("format") == FORMAT or ("format" not in document and any(key in document for key in _GRAPH_KEYS)):
        return "" if is_json else "is a graph in JSON; its name must not end in .pb or .binpb"
    return f"{_JSON}: {_what_object(document)}"


def _what_object(document: dict[str, Any]) -> str:
    if other := next((kind for keys, kind in _OTHERS.items() if document.keys() >= {*keys}), ""):
        return f"it is {other}"
    return (
        f"its 'format' is {document['format']!r:.60}" if "format" in document else "it has no 'format' and no 'nodes'"
    )
