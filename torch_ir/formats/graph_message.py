"""Graphs: from the JSON document to the message `Graph`, and back.

The document is what `IR.to_dict` gives and `IR.from_dict` checks, so that only one place knows what a graph may be.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from typing import Any

from torch_ir.errors import SerializationError, did_you_mean
from torch_ir.formats.value_message import Fields, enum_name, named, table, value_fields, value_record
from torch_ir.ir import Limits
from torch_ir.ir.document import parse_document
from torch_ir.ir.encode import MAX_FUNCTION_DEPTH
from torch_ir.ir.records import allow_keys

Record = dict[str, Any]  # a part of the document
_SAME = ("model_name", "pytorch_version", "mutations", "constraints", "shared_weights", "device", "fixed_layout")
_ORIGIN = ("module", "module_class", "call", "source", "function")
_ORIGIN_LISTS = ("outer", "origins")
# what is known here: whatever else a document had would be lost
_GRAPH = frozenset(
    (
        *_SAME, "graph_inputs", "graph_outputs", "weights", "weight_name_mapping", "params", "constants", "nodes",
        "symbols", "functions", "mesh", "modules", "input_tree", "output_tree", "extensions",
    )
)  # fmt: skip
_NODE = frozenset(("name", "op_type", "inputs", "outputs", "attrs", "args", *_ORIGIN, *_ORIGIN_LISTS))
_TENSOR = frozenset(("name", "dtype", "shape", "stride", "placement"))


# -- to messages ------------------------------------------------------------------------------------------------------


def graph_fields(record: Record, name: str = "") -> Fields:
    """A graph of the document as a message."""
    allow_keys(record, _GRAPH, "$")
    fields: Fields = {
        "name": name,
        **_present(record, _SAME),
        "inputs": [tensor_fields(tensor) for tensor in record["graph_inputs"]],
        "outputs": [tensor_fields(tensor) for tensor in record["graph_outputs"]],
        "weights": _weight_fields(record),
        "nodes": [_node_fields(node) for node in record["nodes"]],
        "symbols": [{"name": name, **symbol} for name, symbol in record.get("symbols", {}).items()],
        "functions": [graph_fields(body, name) for name, body in record.get("functions", {}).items()],
        "mesh": [{"name": axis, "size": size} for axis, size in record.get("mesh", {}).items()],
        "modules": [{"path": path, "class_name": kind} for path, kind in record.get("modules", {}).items()],
    }
    if "input_tree" in record:
        fields["input_tree"] = value_fields(record["input_tree"])
    if "output_tree" in record:
        fields["output_tree"] = value_fields(record["output_tree"]["tree"])
    if "extensions" in record:
        fields["extensions"] = json.dumps(record["extensions"], ensure_ascii=False, separators=(",", ":"))
    return fields


def _present(record: Record, keys: tuple[str, ...]) -> Fields:
    return {key: record[key] for key in keys if key in record}


def tensor_fields(record: Record, name: str = "") -> Fields:
    """A tensor of the document as a message, under its own name if no other is given."""
    allow_keys(record, _TENSOR, "$")
    fields: Fields = {"name": name or record["name"], "dtype": record["dtype"], "shape": _dims_fields(record["shape"])}
    if "stride" in record:
        fields["stride"] = {"dims": _dims_fields(record["stride"])}
    if "placement" in record:
        fields["placement"] = {"axes": record["placement"]}
    return fields


def _dims_fields(dims: list[Any]) -> list[Fields]:
    return [{"expression": dim} if isinstance(dim, str) else {"size": dim} for dim in dims]


def _weight_fields(record: Record) -> list[Fields]:
    constants = record.get("constants", {})
    found = []
    for weight, (name, key) in zip(record["weights"], record["weight_name_mapping"].items(), strict=True):
        param = record["params"][name]
        fields: Fields = {
            "tensor": tensor_fields(weight, name),
            "keys": [key, *param.get("tied", ())],
            "kind": param["kind"].upper(),
        }
        if key in constants:
            fields["values"] = base64.b64decode(constants[key]["base64"])
        found.append(fields)
    return found


def _node_fields(record: Record) -> Fields:
    allow_keys(record, _NODE, "$")
    names = [tensor["name"] for tensor in record["inputs"]]
    arguments = record.get("args") or [""] * len(names)
    return {
        "name": record["name"],
        "op_type": record["op_type"],
        "inputs": [{"tensor": name, "argument": arg} for name, arg in zip(names, arguments, strict=True)],
        "outputs": [tensor_fields(tensor) for tensor in record["outputs"]],
        "attributes": [named(name, value) for name, value in record["attrs"].items()],
        **_present(record, _ORIGIN + _ORIGIN_LISTS),
    }


# -- and back ---------------------------------------------------------------------------------------------------------


def graph_record(
    message: Any, limits: Limits, path: str = "$", around: Mapping[str, Record] | None = None, depth: int = 0
) -> Record:
    """The message of a graph as a graph of the document; `around` are the weights of the graph around a function."""
    if depth > MAX_FUNCTION_DEPTH:
        raise SerializationError(f"functions are nested deeper than {MAX_FUNCTION_DEPTH} levels", path)
    inputs = tensor_records(message.inputs, f"{path}.graph_inputs")
    tables = _weight_tables(message, path)
    weights = {name: around[name] for name in message.shared_weights if around and name in around}
    for name, weight in zip(tables["weight_name_mapping"], tables["weights"], strict=True):
        weights[name] = _restated({**weight, "name": name})
    known = {**weights, **{tensor["name"]: _restated(tensor, tensor["name"]) for tensor in inputs}}
    record: Record = {
        "model_name": message.model_name,
        "pytorch_version": message.pytorch_version,
        "graph_inputs": inputs,
        **tables,
        "nodes": [_node_record(node, known, f"{path}.nodes[{index}]") for index, node in enumerate(message.nodes)],
        "graph_outputs": tensor_records(message.outputs, f"{path}.graph_outputs"),
        "shared_weights": list(message.shared_weights),
        "mutations": [{"target": pair.target, "value": pair.value} for pair in message.mutations],
        "symbols": table(((symbol.name, _symbol_record(symbol)) for symbol in message.symbols), f"{path}.symbols"),
        "constraints": list(message.constraints),
        "functions": {
            name: graph_record(body, limits, f"{path}.functions.{name}", weights, depth + 1)
            for name, body in table(((body.name, body) for body in message.functions), f"{path}.functions").items()
        },
        "mesh": table(((axis.name, axis.size) for axis in message.mesh), f"{path}.mesh"),
        "fixed_layout": message.fixed_layout,
        "modules": table(((module.path, module.class_name) for module in message.modules), f"{path}.modules"),
        "extensions": _read_extensions(message.extensions, limits, f"{path}.extensions"),
    }
    if message.device:
        record["device"] = message.device
    if message.HasField("input_tree"):
        record["input_tree"] = value_record(message.input_tree, f"{path}.input_tree")
    if message.HasField("output_tree"):
        record["output_tree"] = {"tree": value_record(message.output_tree, f"{path}.output_tree.tree")}
    return record


def tensor_records(messages: Any, path: str) -> list[Record]:
    """The messages of tensors as the document spells them."""
    return [_tensor_record(tensor, f"{path}[{index}]") for index, tensor in enumerate(messages)]


def _tensor_record(message: Any, path: str) -> Record:
    record = {"name": message.name, "shape": _dims(message.shape, f"{path}.shape"), "dtype": message.dtype}
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
            raise SerializationError("a dimension is neither a size nor an expression", f"{path}[{index}]")
        found.append(getattr(dim, kind))
    return found


def _restated(tensor: Record, producer: str | None = None, index: int = 0) -> Record:
    """What a reader of this tensor says about it."""
    record = {key: tensor[key] for key in ("name", "shape", "dtype")}
    return record if producer is None else {**record, "producer_node": producer, "producer_output_idx": index}


def _weight_tables(message: Any, path: str) -> Record:
    """The tables of the document that speak of weights."""
    weights, names, params, constants = [], {}, {}, {}
    for index, weight in enumerate(message.weights):
        place = f"{path}.weights[{index}]"
        tensor = _tensor_record(weight.tensor, place)
        name, keys = tensor["name"], list(weight.keys)
        if not keys or name in names:
            raise SerializationError("a weight has no key" if not keys else f"{name!r:.60} stands twice", place)
        names[name] = keys[0]
        params[name] = {"kind": enum_name(weight, "kind"), "tied": keys[1:]}
        weights.append({**tensor, "name": keys[0]})
        if weight.HasField("values"):
            values = base64.b64encode(weight.values).decode("ascii")
            constants[keys[0]] = {"shape": tensor["shape"], "dtype": tensor["dtype"], "base64": values}
    return {"weights": weights, "weight_name_mapping": names, "params": params, "constants": constants}


def _node_record(message: Any, known: Record, path: str) -> Record:
    """A node, whose outputs are known from here on."""
    if not message.name or not message.op_type:  # at once: a few bytes of a hostile file make thousands of these
        raise SerializationError("a node has no name or no operator", path)
    inputs = []
    for index, tensor in enumerate(message.inputs):
        if tensor.tensor not in known:
            hint = did_you_mean(tensor.tensor[:100], known)
            raise SerializationError(
                f"it reads {tensor.tensor!r:.60}, which nothing before it makes{hint}", f"{path}.inputs[{index}]"
            )
        inputs.append(known[tensor.tensor])
    outputs = tensor_records(message.outputs, f"{path}.outputs")
    for index, tensor in enumerate(outputs):
        known[tensor["name"]] = _restated(tensor, message.name, index)
    attrs = table(((attribute.name, attribute.value) for attribute in message.attributes), f"{path}.attrs")
    record: Record = {
        "name": message.name,
        "op_type": message.op_type,
        "inputs": inputs,
        "outputs": outputs,
        "attrs": {name: value_record(value, f"{path}.attrs.{name}") for name, value in attrs.items()},
    }
    arguments = [tensor.argument for tensor in message.inputs]
    if any(arguments):
        record["args"] = arguments
    record.update((key, value) for key in _ORIGIN if (value := getattr(message, key)))
    record.update((key, list(value)) for key in _ORIGIN_LISTS if (value := getattr(message, key)))
    return record


def _symbol_record(message: Any) -> Record:
    record = {key: getattr(message, key) for key in ("min", "max", "dim") if message.HasField(key)}
    return {**record, "tensor": message.tensor}


def _read_extensions(text: str, limits: Limits, path: str) -> Record:
    """The user's own JSON object, by the rules of the document."""
    if not text:
        return {}
    try:
        document = parse_document(f'{{"extensions": {text}}}', limits)
    except SerializationError as error:
        raise SerializationError(str(error), path) from None
    if document.keys() != {"extensions"}:
        raise SerializationError("it is more than one JSON value", path)
    found: Record = document["extensions"]
    return found
