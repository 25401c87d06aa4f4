"""Bound the memory that a protobuf message takes, before it is parsed: an empty one of two bytes takes a hundred."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

_HEADER, _SLOT = 32, 16  # bytes of a message, and of each of its fields
_ENTRY, _ARRAY = 24, 72  # bytes of an entry of a list, and of a list
_PACKED = 16  # bytes of memory for each byte of packed numbers
_VARINT, _LENGTH = 0, 2  # wire types
_LONG, _MOST_BYTES = 128, 10  # the first byte of a number that has more; bytes of a number
_FIXED = {1: 8, 5: 4}  # lengths in bytes of the others


class _Field(NamedTuple):
    """The memory of a field: of a list, of an entry, of each byte; and its type if that is a message."""

    array: int
    entry: int
    byte: int
    message: Any = None


_UNKNOWN = _Field(0, _ENTRY, 1)


def memory_of(message: Any, data: bytes, most: int) -> int:
    """Return the bytes of memory that a message of this class takes at most; stop beyond `most`, and at an error."""
    memory, at = 0, 0
    left = [(_fields(message.DESCRIPTOR), len(data), 0)]
    try:
        while left:
            fields, end, last = left.pop()
            while at < end and memory <= most:
                tag, at = (data[at], at + 1) if data[at] < _LONG else _varint(data, at)
                field, kind = fields.get(tag >> 3, _UNKNOWN), tag & 7
                memory += field.entry if tag == last else field.entry + field.array
                last = tag
                if kind == _VARINT:
                    at = at + 1 if data[at] < _LONG else _varint(data, at)[1]
                elif kind == _LENGTH:
                    length, at = (data[at], at + 1) if data[at] < _LONG else _varint(data, at)
                    memory += length * field.byte
                    if at + length > end:
                        return memory
                    if field.message is None:
                        at += length
                    else:
                        left.append((fields, end, last))
                        fields, end, last = _fields(field.message), at + length, 0
                else:
                    at += _FIXED.get(kind, 0)
    except IndexError:  # it ends within a number, or a number has too many bytes
        pass
    return memory


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """Return the number at a place, and the place after it."""
    number = data[at] - _LONG
    for index in range(1, _MOST_BYTES):
        byte = data[at + index]
        number += (byte & (_LONG - 1)) << 7 * index
        if byte < _LONG:
            return number, at + index + 1
    raise IndexError


@lru_cache
def _fields(message: Any) -> dict[int, _Field]:
    return {field.number: _field(field) for field in message.fields}


def _field(field: Any) -> _Field:
    array, entry = (_ARRAY, _ENTRY) if field.is_repeated else (0, 0)
    if (message := field.message_type) is not None:
        slots = len(message.oneofs) + sum(other.containing_oneof is None for other in message.fields)
        return _Field(array, entry + _HEADER + _SLOT * slots, 0, message)
    if field.type in (field.TYPE_STRING, field.TYPE_BYTES):
        return _Field(array, entry + _SLOT, 1)
    return _Field(array, entry, _PACKED)
