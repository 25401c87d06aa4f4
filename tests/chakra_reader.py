"""An independent reader of Chakra traces: protobuf's wire format by hand, with the numbers of Chakra's et_def.proto."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

TYPES = {4: "COMP", 5: "SEND", 6: "RECV", 7: "COLL"}
COLLECTIVES = {0: "ALL_REDUCE", 2: "ALL_GATHER", 5: "BROADCAST", 6: "ALL_TO_ALL", 7: "REDUCE_SCATTER"}
_VALUES = {7: "int32", 9: "int64", 13: "uint64", 27: "bool", 29: "string"}  # of an AttributeProto
# where Chakra's feeder looks for an attribute
FEEDER = {
    "is_cpu_op": "bool", "num_ops": "int64", "tensor_size": "uint64", "comm_type": "int64", "comm_size": "int64",
    "comm_src": "int32", "comm_dst": "int32", "comm_tag": "int32", "pg_name": "string",
}  # fmt: skip


@dataclass
class Node:
    id: int = 0  # proto3 leaves out zeros
    name: str = ""
    type: str = ""
    data_deps: list[int] = field(default_factory=list)
    duration: int = 0
    attrs: dict[str, int | str] = field(default_factory=dict)


def read_trace(path: Path) -> tuple[str, list[Node]]:
    """The version of the schema, and the nodes."""
    frames = list(_frames(path.read_bytes()))
    version = dict(_fields(frames[0]))[1]
    assert isinstance(version, bytes)
    return version.decode(), [_node(frame) for frame in frames[1:]]


def _frames(data: bytes) -> Iterator[bytes]:
    at = 0
    while at < len(data):
        size, at = _varint(data, at)
        assert at + size <= len(data)
        yield data[at : at + size]
        at += size


def _node(data: bytes) -> Node:
    node = Node()
    for number, value in _fields(data):
        if number == 1 and isinstance(value, int):
            node.id = value
        elif number == 2 and isinstance(value, bytes):
            node.name = value.decode()
        elif number == 3 and isinstance(value, int):
            node.type = TYPES[value]
        elif number == 5:  # packed
            node.data_deps += _packed(value)
        elif number == 7 and isinstance(value, int):
            node.duration = value
        elif number == 10 and isinstance(value, bytes):
            name, kind, found = _attribute(value)
            assert FEEDER.get(name, kind) == kind
            node.attrs[name] = found
        else:
            raise AssertionError(f"field {number}")
    return node


def _attribute(data: bytes) -> tuple[str, str, int | str]:
    name, kind, found = "", "", 0
    for number, value in _fields(data):
        if number == 1:
            assert isinstance(value, bytes)
            name = value.decode()
        else:
            kind = _VALUES[number]
            return name, kind, value.decode() if isinstance(value, bytes) else value
    return name, kind, found


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        value, at = _varint(data, at)
        if key & 7 == 2:
            yield key >> 3, data[at : at + value]
            at += value
        else:
            assert key & 7 == 0
            yield key >> 3, value


def _packed(value: int | bytes) -> Iterator[int]:
    if isinstance(value, int):
        yield value
        return
    at = 0
    while at < len(value):
        item, at = _varint(value, at)
        yield item


def _varint(data: bytes, at: int) -> tuple[int, int]:
    found = shift = 0
    while True:
        found |= (data[at] & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if not data[at - 1] & 0x80:
            return found, at
