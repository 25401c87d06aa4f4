"""Convert the layers of a target from the plain values of `Lowered.to_dict` to the message `Lowered`, and back.

Keys of these dicts are fields of the message: protobuf itself refuses any other.
"""

from __future__ import annotations

from typing import Any

from torch_ir.errors import SerializationError
from torch_ir.formats.interned_tables import Record, type_fields, type_record
from torch_ir.formats.value_message import Fields, table, value_fields, value_record
from torch_ir.ir.json.json_fields import allow_keys
from torch_ir.ir.json.json_values import decode, encode

_TENSOR = frozenset(("name", "dtype", "shape", "stride", "placement"))  # others would be lost
_LISTS = ("inputs", "outputs", "nodes", "modules", "sources", "reasons")


# -- to messages ------------------------------------------------------------------------------------------------------


def lowered_fields(record: Record) -> Fields:
    """Return the fields of a lowered graph; an error names the layer whose value protobuf cannot represent."""
    return {
        **record,
        "inputs": [_tensor_fields(tensor) for tensor in record["inputs"]],
        "weights": [_tensor_fields({"name": key, **about}) for key, about in record["weights"].items()],
        "mutations": [{"target": target, "value": value} for target, value in record["mutations"]],
        "layers": [_layer_fields(layer) for layer in record["layers"]],
        "missing": [{key: value for key, value in row.items() if key != "count"} for row in record["missing"]],
    }


def _tensor_fields(record: Record) -> Fields:
    allow_keys(record, _TENSOR, "$")
    return {"name": record["name"], **type_fields(record)}


def _layer_fields(record: Record) -> Fields:
    weights = [{"argument": argument, "key": key} for argument, key in record["weights"].items()]
    if "value" not in record:
        return {**record, "weights": weights}
    try:
        value = value_fields(encode(record["value"]))
    except SerializationError as error:
        raise SerializationError.of(error, f"layer {record['name']!r} ({record['kind']})") from None
    return {**record, "weights": weights, "value": value}


# -- from messages ----------------------------------------------------------------------------------------------------


def lowered_record(message: Any) -> Record:
    """Return the plain values of a message."""
    weights = table(
        ((weight.pop("name"), weight) for weight in _tensor_records(message.weights, "$.weights")), "$.weights"
    )
    return {
        "target": message.target,
        "model_name": message.model_name,
        "inputs": _tensor_records(message.inputs, "$.inputs"),
        "outputs": list(message.outputs),
        "weights": weights,
        "mutations": [[pair.target, pair.value] for pair in message.mutations],
        "layers": [_layer_record(layer, f"$.layers[{index}]") for index, layer in enumerate(message.layers)],
        "missing": [_missing_record(row) for row in message.missing],
    }


def _tensor_records(messages: Any, path: str) -> list[Record]:
    return [{"name": tensor.name, **type_record(tensor, f"{path}[{index}]")} for index, tensor in enumerate(messages)]


def _layer_record(message: Any, path: str) -> Record:
    weights = table(((weight.argument, weight.key) for weight in message.weights), f"{path}.weights")
    record: Record = {
        "name": message.name,
        "kind": message.kind,
        "inputs": list(message.inputs),
        "outputs": list(message.outputs),
        "weights": weights,
    }
    if not message.HasField("value"):
        return {**record, "placeholder": list(message.placeholder)}
    if message.placeholder:
        raise SerializationError("a placeholder has a value", path, rule="R7")
    path = f"{path}.value"
    return {**record, "value": decode(value_record(message.value, path), path)}


def _missing_record(message: Any) -> Record:
    lists = {key: list(getattr(message, key)) for key in _LISTS}
    return {"op_type": message.op_type, **lists, "count": len(message.nodes)}
