"""Interned tables of a model: types of tensors, operations, origins; see `Model` in `torch_ir.proto`."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from typing import Any, NamedTuple

from torch_ir.errors import SerializationError
from torch_ir.formats.value_message import Fields, named, table, value_record
from torch_ir.ir import Dim, OpNode, Origin, TensorMeta
from torch_ir.ir.graph.attr_order import ordered
from torch_ir.ir.json.json_values import decode, encode
from torch_ir.ir.json.node_codec import attrs_text

Record = dict[str, Any]  # a part of the document
_MAX_SHARED = 128  # bytes of attributes that nodes may share


# -- to messages ------------------------------------------------------------------------------------------------------


class NewTables:
    """The tables of a model that is being written: equal entries have equal numbers."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self._types: dict[Hashable, int] = {}
        self._operations: dict[Hashable, int] = {}
        self._places: dict[Origin, int] = {}

    def type(self, tensor: TensorMeta) -> int:
        key = (tensor.shape, tensor.dtype, tensor.stride, tensor.placement)
        number = self._types.get(key)
        if number is None:
            number = self._types[key] = len(self._types)
            self._model.types.add(**type_fields(tensor.to_dict()))
        return number

    def operation(self, node: OpNode) -> int:
        attrs = ordered(node.op_type, node.attrs)
        key = (node.op_type, node._args, attrs_text(attrs))
        number = self._operations.get(key)
        if number is None:
            number = len(self._model.operations)
            attributes = [named(name, encode(value)) for name, value in attrs.items()]
            new = self._model.operations.add(op_type=node.op_type, arguments=node._args, attributes=attributes)
            if not _is_large(new):
                self._operations[key] = number
        return number

    def place(self, node: OpNode) -> int:
        number = self._places.get(node.origin)
        if number is None:
            number = self._places[node.origin] = len(self._places)
            self._model.places.add(**node.origin._asdict())
        return number


def _is_large(message: Any) -> bool:
    """Whether an operation may belong to one node only, as each node gets its own attributes."""
    size: int = sum(attribute.ByteSize() for attribute in message.attributes)
    return size > _MAX_SHARED


def type_fields(record: Record) -> Fields:
    """Return the fields of a message for a tensor of the document."""
    fields: Fields = {"dtype": record["dtype"], "shape": _dims_fields(record["shape"])}
    if "stride" in record:
        fields["stride"] = {"dims": _dims_fields(record["stride"])}
    if "placement" in record:
        fields["placement"] = {"axes": record["placement"]}
    return fields


def _dims_fields(dims: Sequence[Dim]) -> list[Fields]:
    return [{"expression": dim} if isinstance(dim, str) else {"size": dim} for dim in dims]


# -- from messages ----------------------------------------------------------------------------------------------------


class Operation(NamedTuple):
    """The operation of a node."""

    op_type: str
    args: tuple[str, ...]
    attrs: dict[str, Any]
    is_flat: bool  # no attribute is a list or dict, which nodes must not share
    is_large: bool


class Tables:
    """The validated tables of a model that is being read."""

    def __init__(self, model: Any) -> None:
        self.types = [TensorMeta.from_dict({**type_record(m, p), "name": ""}, p) for m, p in _each(model, "types")]
        self.operations = [_read_operation(message, path) for message, path in _each(model, "operations")]
        self.places = [
            Origin(m.module, m.call, m.module_class, m.source, tuple(m.outer), m.function) for m in model.places
        ]


def _each(model: Any, key: str) -> Iterator[tuple[Any, str]]:
    return ((message, f"$.{key}[{index}]") for index, message in enumerate(getattr(model, key)))


def _read_operation(message: Any, path: str) -> Operation:
    if not message.op_type:  # checked at once: a few bytes of a hostile file could create thousands of these
        raise SerializationError("an operation has no operator", f"{path}.op_type", rule="R6")
    values = table(((attribute.name, attribute.value) for attribute in message.attributes), f"{path}.attrs")
    attrs = {}
    for name, value in values.items():
        place = f"{path}.attrs.{name:.200}"
        attrs[name] = decode(value_record(value, place), place)
    is_flat = not any(isinstance(value, (list, dict)) for value in attrs.values())
    return Operation(message.op_type, tuple(message.arguments), attrs, is_flat, _is_large(message))


def type_record(message: Any, path: str) -> Record:
    """Return a tensor's type as a record of the document."""
    record: Record = {"shape": _dims(message.shape, f"{path}.shape"), "dtype": message.dtype}
    if message.HasField("stride"):
        record["stride"] = _dims(message.stride.dims, f"{path}.stride")
    if message.HasField("placement"):
        record["placement"] = list(message.placement.axes)
    return record


def _dims(messages: Any, path: str) -> list[Any]:
    found = []
    for index, dim in enumerate(messages):
        kind = dim.WhichOneof("kind")
        if kind is None:
            message = "a dimension is neither a size nor an expression"
            raise SerializationError(message, f"{path}[{index}]", rule="R4")
        found.append(getattr(dim, kind))
    return found
