"""Graphs and lowered graphs as protobuf: bytes, files, and their digest; see `torch_ir.proto`.

`make proto` regenerates the descriptor set of its message classes.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch_ir.errors import SerializationError, first_line
from torch_ir.formats.descriptors import message_class
from torch_ir.formats.graph_message import GraphReader, write_graph
from torch_ir.formats.interned_tables import NewTables
from torch_ir.formats.lowered_message import lowered_fields, lowered_record
from torch_ir.formats.message_memory import memory_of
from torch_ir.ir import IR, Limits
from torch_ir.ir.checks.limits import allow_more
from torch_ir.ir.files.atomic_write import write_bytes
from torch_ir.ir.files.sniff_file import sniffed_errors
from torch_ir.ir.graph.given_graph import require_graph
from torch_ir.ir.json.digest import digest_of
from torch_ir.ir.json.encode import FORMAT, graph_document
from torch_ir.ir.json.json_text import read_bytes

_DIGEST_FIELD = b"\x7a\x20"  # start of the last field: number 15, 32 bytes
_DIGEST_LENGTH = len(_DIGEST_FIELD) + 32
_MEMORY = 5  # times the bytes that a message may have
_SMALL = 1 << 22  # bytes of a message that takes less than a gigabyte of memory, whatever it contains
_LOWERED_FORMAT = "torch-ir-lowered"
_LOWERED_VERSION = 1


def is_protobuf(path: str | os.PathLike[str]) -> bool:
    """Whether a file's name means protobuf; any other is JSON."""
    return Path(path).suffix.lower() in (".pb", ".binpb")


def save_protobuf(ir: IR, path: str | os.PathLike[str]) -> None:
    """Write a graph to a protobuf file atomically; folders are created as needed."""
    require_graph(ir, "save_protobuf")
    write_bytes(path, to_protobuf(ir))


def load_protobuf(path: str | os.PathLike[str], limits: Limits = Limits()) -> IR:
    """Read a graph from a protobuf file."""
    with sniffed_errors(path, limits, is_json=False):
        return from_protobuf(read_bytes(path, limits), limits)


def to_protobuf(ir: IR) -> bytes:
    """Return the graph as a protobuf message; equal graphs have equal bytes. An invalid graph is refused."""
    require_graph(ir, "to_protobuf")
    return _write("Model", lambda model: _write_model(model, ir.check()))


def from_protobuf(data: bytes, limits: Limits = Limits()) -> IR:
    """Read a graph from a protobuf message; errors have the JSON path of the document."""
    model = _read("Model", FORMAT, data, limits)
    if not model.HasField("graph"):
        raise SerializationError("the file contains no graph", "$", rule="R4")
    record = GraphReader(model, limits).record(model.graph)
    return IR.from_dict({"format": model.format, "version": model.version, **record}, limits)


def message_digest(data: bytes) -> str | None:
    """Return the digest at the end of a file's bytes, formatted as in JSON; None if it does not match."""
    body = data[:-_DIGEST_LENGTH]
    return digest_of(body) if data[-_DIGEST_LENGTH:] == _digest(body) else None


def _write_model(model: Any, ir: IR) -> None:
    document = graph_document(ir, nodes=lambda graph: graph)
    model.format, model.version = document.pop("format"), document.pop("version")
    write_graph(model.graph, document, NewTables(model))


def lowered_to_protobuf(document: dict[str, Any]) -> bytes:
    """Convert the result of `Lowered.to_dict` to a protobuf message."""
    return _write("LoweredModel", lambda model: _write_lowered(model, document))


def _write_lowered(model: Any, document: dict[str, Any]) -> None:
    model.format, model.version = _LOWERED_FORMAT, _LOWERED_VERSION
    model.lowered.MergeFrom(type(model.lowered)(**lowered_fields(document)))


def lowered_from_protobuf(data: bytes, limits: Limits = Limits()) -> dict[str, Any]:
    """Return what `Lowered.to_dict` returned."""
    message = _read("LoweredModel", _LOWERED_FORMAT, data, limits)
    if message.version != _LOWERED_VERSION:
        problem = f"the file has version {message.version}, but this torch_ir reads version {_LOWERED_VERSION}"
        raise SerializationError(problem, "$.version", rule="R4")
    if not message.HasField("lowered"):
        raise SerializationError("the file contains no lowered graph", "$", rule="R4")
    return lowered_record(message.lowered)


def _write(kind: str, fill: Callable[[Any], None]) -> bytes:
    """Serialise a message, with its digest at the end."""
    message = _message_class(kind)()
    from google.protobuf.message import EncodeError

    try:
        fill(message)
        body: bytes = message.SerializeToString(deterministic=True)
    except (EncodeError, TypeError, ValueError) as error:  # over 2 GiB, not a string, half of a surrogate pair
        raise SerializationError(f"cannot be written as protobuf: {first_line(error)}", rule="R17") from None
    return body + _digest(body)


def _read(kind: str, file_format: str, data: bytes, limits: Limits) -> Any:
    """Parse and check a file of this kind."""
    for name in ("file_bytes", "message_bytes"):
        if len(data) > (limit := getattr(limits, name)):
            raise SerializationError(f"{len(data)} bytes are more than {limit}", rule="R2", hint=allow_more(name))
    _check_memory(kind, data, limits.message_bytes * _MEMORY)
    message = _parse(kind, data)
    if message.format != file_format:
        raise SerializationError(f"format is {message.format!r:.60}, not {file_format!r}", "$.format", rule="R4")
    message.DiscardUnknownFields()
    if message.ByteSize() != len(data):  # also a duplicate field, which no writer writes
        raise SerializationError("the file contains unknown fields", "$", rule="R4")
    if message.sha256 and data[-_DIGEST_LENGTH:] != _digest(data[:-_DIGEST_LENGTH]):
        raise SerializationError("digest mismatch: the file was modified after it was saved", "$.sha256", rule="R17")
    return message


def _check_memory(kind: str, data: bytes, most: int) -> None:
    """Refuse a message that takes too much memory once parsed, unless it is small."""
    if len(data) > _SMALL and (memory := memory_of(_message_class(kind), data, most)) > most:
        message = f"parsing takes {memory} bytes of memory or more; the limit is {most}"
        raise SerializationError(message, "$", rule="R2", hint=allow_more("message_bytes"))


def _parse(kind: str, data: bytes) -> Any:
    message = _message_class(kind)()
    from google.protobuf.message import DecodeError

    try:
        message.ParseFromString(data)
    except (DecodeError, ValueError, RecursionError) as error:  # the pure Python implementation raises more kinds
        raise SerializationError(f"not a protobuf file of torch_ir: {first_line(error)}", "$", rule="R1") from None
    return message


def _digest(body: bytes) -> bytes:
    return _DIGEST_FIELD + hashlib.sha256(body).digest()


def _message_class(kind: str) -> Any:
    return message_class("torch_ir", f"torch_ir.v1.{kind}")
