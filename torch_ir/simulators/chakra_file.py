"""Chakra's file of one trace: a GlobalMetadata and Nodes, each behind its length as a varint."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from torch_ir.errors import SerializationError
from torch_ir.formats.descriptors import message_class
from torch_ir.simulators.trace_nodes import TraceNode

VERSION = "0.0.4"  # of the schema
_TYPES = {  # the fields in which Chakra's feeder looks for attributes; others are int64
    "is_cpu_op": "bool_val", "tensor_size": "uint64_val", "comm_src": "int32_val", "comm_dst": "int32_val",
    "comm_tag": "int32_val", "pg_name": "string_val", "op_type": "string_val",
}  # fmt: skip
_MOST_BYTES = 1 << 28
_VARINT = 10  # bytes


def trace_bytes(nodes: Iterable[TraceNode]) -> bytes:
    """Return the content of a trace file; the id of a node is its position."""
    message = message_class("chakra", "ChakraProtoMsg.Node")
    parts = [message_class("chakra", "ChakraProtoMsg.GlobalMetadata")(version=VERSION)]
    for number, node in enumerate(nodes):
        attrs = [{"name": name, _TYPES.get(name, "int64_val"): value} for name, value in node.attrs.items()]
        parts.append(
            message(
                id=number,
                name=node.name,
                type=node.kind,
                data_deps=node.waits_for,
                duration_micros=node.micros,
                attr=[{"name": "is_cpu_op", "bool_val": False}, *attrs],
            )
        )
    return b"".join(map(_framed, parts))


def changed_trace(data: bytes, change: Callable[[str, Any], Any]) -> bytes:
    """Return the trace with `change(name, value)` for the value of each attribute of each node."""
    first, *rest = _frames(data) or [b""]
    return b"".join([_frame(first), *(_framed(_changed(frame, at, change)) for at, frame in enumerate(rest))])


def _changed(frame: bytes, number: int, change: Callable[[str, Any], Any]) -> Any:
    """Return a node with changed attributes; those of other names have values of any type."""
    message = message_class("chakra", "ChakraProtoMsg.Node")
    from google.protobuf.message import DecodeError

    where = f"node {number} of the trace"
    try:
        node = message.FromString(frame)
        for attr in node.attr:
            field = _TYPES.get(attr.name)
            if field is not None and attr.WhichOneof("value") != field:
                raise SerializationError(f"{where}: attribute {attr.name} has no {field}", rule="R1")
            if field is not None:
                setattr(attr, field, change(attr.name, getattr(attr, field)))
    except (DecodeError, ValueError) as error:  # not a message, or a number that does not fit
        raise SerializationError(f"{where} cannot be read: {error!s:.80}", rule="R1") from None
    return node


def _framed(message: Any) -> bytes:
    return _frame(message.SerializeToString(deterministic=True))


def _frame(body: bytes) -> bytes:
    length, left = bytearray(), len(body)
    while left > 0x7F:
        length.append(0x80 | left & 0x7F)
        left >>= 7
    return bytes([*length, left]) + body


def _frames(data: bytes) -> list[bytes]:
    """Return the messages of a file."""
    at, found = 0, []
    while at < len(data):
        size, shift = 0, 0
        while shift < 7 * _VARINT and at < len(data):
            size |= (data[at] & 0x7F) << shift
            shift, at = shift + 7, at + 1
            if not data[at - 1] & 0x80:
                break
        if size > _MOST_BYTES or at + size > len(data):
            raise SerializationError("the trace is cut off", rule="R1")
        found.append(data[at : at + size])
        at += size
    return found
