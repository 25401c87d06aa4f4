"""Convert graphs to the message `Graph`, and back.

Everything but nodes goes through the JSON document, which `IR.to_dict` writes and `IR.from_dict` checks, so that only
one place validates graphs. Nodes, of which there are many, are created from the model's tables, and checked with the
graph.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Sequence
from typing import Any

from torch_ir.errors import GraphError, SerializationError
from torch_ir.formats.interned_tables import NewTables, Record, Tables
from torch_ir.formats.value_message import Fields, kind_name, table, value_fields, value_record
from torch_ir.ir import IR, Limits, OpNode, TensorMeta
from torch_ir.ir.checks.limits import Counter, allow_more
from torch_ir.ir.graph.node import copy_value
from torch_ir.ir.graph.tensor import Scope
from torch_ir.ir.json.decode import Unmade
from torch_ir.ir.json.encode import MAX_FUNCTION_DEPTH
from torch_ir.ir.json.json_fields import allow_keys
from torch_ir.ir.json.json_text import parse_document

_SAME = ("model_name", "pytorch_version", "constraints", "shared_weights", "device", "fixed_layout")
_LISTS = ("mutations", "symbols", "constraints", "shared_weights", "mesh", "modules")
# all known keys: others would be lost
_GRAPH = frozenset(
    (
        *_SAME, "graph_inputs", "graph_outputs", "weights", "weight_name_mapping", "params", "constants", "nodes",
        "mutations", "symbols", "functions", "mesh", "modules", "input_tree", "output_tree", "extensions",
    )
)  # fmt: skip


# -- to messages ------------------------------------------------------------------------------------------------------


def write_graph(message: Any, record: Record, tables: NewTables, name: str = "") -> None:
    """Write a graph of the document into a message; `record["nodes"]` is the IR itself."""
    allow_keys(record, _GRAPH, "$")
    ir: IR = record["nodes"]
    message.MergeFrom(
        type(message)(
            name=name,
            **{key: record[key] for key in _SAME if key in record},
            inputs=[_tensor_fields(tensor, tables) for tensor in ir.graph_inputs],
            weights=_weight_fields(record, ir, tables),
            mutations=record.get("mutations", ()),
            symbols=[{"name": name, **symbol} for name, symbol in record.get("symbols", {}).items()],
            mesh=[{"name": axis, "size": size} for axis, size in record.get("mesh", {}).items()],
            modules=[{"path": path, "class_name": kind} for path, kind in record.get("modules", {}).items()],
            extensions=_json(record["extensions"]) if "extensions" in record else "",
        )
    )
    for key in ("input_tree", "output_tree"):
        if key in record:
            tree = record[key] if key == "input_tree" else record[key]["tree"]
            getattr(message, key).MergeFrom(type(getattr(message, key))(**value_fields(tree)))
    _write_nodes(message, ir, tables)
    for function, body in record.get("functions", {}).items():
        write_graph(message.functions.add(), body, tables, function)


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _tensor_fields(tensor: TensorMeta, tables: NewTables) -> Fields:
    return {"name": tensor.name, "type": tables.type(tensor)}


def _weight_fields(record: Record, ir: IR, tables: NewTables) -> list[Fields]:
    constants = record.get("constants", {})
    found = []
    for tensor in ir.params[len(record.get("shared_weights", ())) :]:
        param = record["params"][tensor.name]
        key = record["weight_name_mapping"][tensor.name]
        fields: Fields = {
            "tensor": _tensor_fields(tensor, tables),
            "keys": [key, *param.get("tied", ())],
            "kind": param["kind"].upper(),
        }
        if key in constants:
            fields["values"] = base64.b64decode(constants[key]["base64"])
        found.append(fields)
    return found


def _write_nodes(message: Any, ir: IR, tables: NewTables) -> None:
    numbers = {tensor: number for number, tensor in enumerate(ir.tensors())}
    add = message.nodes.add
    for node in ir.nodes:
        name = node.name
        new = add(name=name, operation=tables.operation(node), place=tables.place(node))
        new.inputs.extend([numbers[tensor] for tensor in node.inputs])
        for tensor in node.outputs:
            is_implied = tensor.index == 0 and tensor.name == name  # only the first may go without a name
            new.outputs.add(name="" if is_implied else tensor.name, type=tables.type(tensor))
        if node.origins != (name,):
            new.origins.extend(node.origins)
    message.outputs.extend([numbers[tensor] for tensor in ir.graph_outputs])


# -- from messages ----------------------------------------------------------------------------------------------------


class GraphReader:
    """Converts the graph of a model to a graph of the document, except its nodes, which are created directly."""

    def __init__(self, model: Any, limits: Limits) -> None:
        _check_lengths(model, ("places",), limits, "$", "nodes")
        self._tables = Tables(model)
        self._used: set[int] = set()  # large operations
        self._limits = limits
        self._counter = Counter(limits)

    def record(self, message: Any, path: str = "$", depth: int = 0) -> Record:
        if depth > MAX_FUNCTION_DEPTH:
            problem = f"functions are nested deeper than {MAX_FUNCTION_DEPTH} levels"
            raise SerializationError(problem, path, rule="R2")
        for key, count in (
            ("functions", len(message.functions)),
            ("tensors", len(message.inputs) + len(message.weights)),
            ("nodes", len(message.nodes)),
        ):
            self._counter.add(key, count, path)
        _check_lengths(message, _LISTS, self._limits, path, "tensors")
        functions = table(((body.name, body) for body in message.functions), f"{path}.functions")
        record: Record = {
            "model_name": message.model_name,
            "pytorch_version": message.pytorch_version,
            "graph_inputs": [
                self._tensor(tensor, f"{path}.graph_inputs[{index}]") for index, tensor in enumerate(message.inputs)
            ],
            **self._weight_tables(message, path),
            "nodes": self._nodes(message, path),
            "shared_weights": list(message.shared_weights),
            "mutations": [{"target": pair.target, "value": pair.value} for pair in message.mutations],
            "symbols": table(((symbol.name, _symbol_record(symbol)) for symbol in message.symbols), f"{path}.symbols"),
            "constraints": list(message.constraints),
            "functions": {
                name: self.record(body, f"{path}.functions.{name:.200}", depth + 1) for name, body in functions.items()
            },
            "mesh": table(((axis.name, axis.size) for axis in message.mesh), f"{path}.mesh"),
            "fixed_layout": message.fixed_layout,
            "modules": table(((module.path, module.class_name) for module in message.modules), f"{path}.modules"),
            "extensions": _read_extensions(message.extensions, self._limits, f"{path}.extensions"),
        }
        if message.device:
            record["device"] = message.device
        if message.HasField("input_tree"):
            record["input_tree"] = value_record(message.input_tree, f"{path}.input_tree")
        if message.HasField("output_tree"):
            record["output_tree"] = {"tree": value_record(message.output_tree, f"{path}.output_tree.tree")}
        return record

    def _tensor(self, message: Any, path: str) -> Record:
        if message.type >= len(self._tables.types):
            problem = f"unknown type {message.type}; there are {len(self._tables.types)}"
            raise SerializationError(problem, path, rule="R8")
        return {**self._tables.types[message.type].to_dict(), "name": message.name}

    def _weight_tables(self, message: Any, path: str) -> Record:
        """Return the tables of weights of the document."""
        weights, names, params, constants = [], {}, {}, {}
        for index, weight in enumerate(message.weights):
            place = f"{path}.weights[{index}]"
            tensor = self._tensor(weight.tensor, place)
            name, keys = tensor["name"], list(weight.keys)
            if not keys or name in names:
                problem, rule = (f"duplicate {name!r:.60}", "R8") if keys else ("a weight has no key", "R6")
                raise SerializationError(problem, place, rule=rule)
            names[name] = keys[0]
            params[name] = {"kind": kind_name(weight), "tied": keys[1:]}
            weights.append({**tensor, "name": keys[0]})
            if weight.HasField("values"):
                values = base64.b64encode(weight.values).decode("ascii")
                constants[keys[0]] = {"shape": tensor["shape"], "dtype": tensor["dtype"], "base64": values}
        return {"weights": weights, "weight_name_mapping": names, "params": params, "constants": constants}

    def _nodes(self, message: Any, path: str) -> Unmade:
        def make(scope: Scope) -> tuple[list[OpNode], list[TensorMeta]]:
            tensors = list(scope.tensors.values())
            nodes: list[OpNode] = []
            try:
                for node in message.nodes:
                    nodes.append(self._node(node, tensors))
                    tensors += nodes[-1]._outputs
            except IndexError:
                place = f"{path}.nodes[{len(nodes)}]"
                raise self._missing(message.nodes[len(nodes)], len(tensors), place) from None
            except GraphError as error:
                raise SerializationError.of(error, f"{path}.nodes[{len(nodes)}]") from None
            scope.tensors.update((tensor.name, tensor) for tensor in tensors)
            if any(number >= len(tensors) for number in message.outputs):
                problem = f"unknown tensor; there are {len(tensors)}"
                raise SerializationError(problem, f"{path}.graph_outputs", rule="R8")
            return nodes, [tensors[number] for number in message.outputs]

        return Unmade(len(message.nodes), make)

    def _node(self, message: Any, tensors: Sequence[TensorMeta]) -> OpNode:
        """Create a node; raise IndexError for an invalid reference."""
        name = message.name
        if not name:  # checked at once: a few bytes of a hostile file could create thousands of these
            raise GraphError("a node has no name", "$.name", rule="R6")
        number = message.operation
        operation = self._tables.operations[number]
        if operation.is_large:
            if number in self._used:
                problem = f"operation {number} is too large to be shared by nodes"
                raise GraphError(problem, "$.operation", rule="R2", node=name)
            self._used.add(number)
        outputs: list[TensorMeta] = []
        for tensor in message.outputs:
            if outputs and not tensor.name:
                problem = f"output {len(outputs)} has no name"
                raise GraphError(problem, f"$.outputs[{len(outputs)}].name", rule="R6", node=name)
            outputs.append(self._tables.types[tensor.type].copy(tensor.name or name))
        attrs = operation.attrs
        return OpNode(
            name,
            operation.op_type,
            [tensors[number] for number in message.inputs],
            outputs,
            attrs if operation.is_flat else {key: copy_value(value) for key, value in attrs.items()},
            args=operation.args,
            origin=self._tables.places[message.place],
            origins=message.origins,
        )

    def _missing(self, message: Any, known: int, path: str) -> SerializationError:
        """Return the error for an invalid reference of a node."""
        references = {
            "operation": (message.operation, len(self._tables.operations)),
            "place": (message.place, len(self._tables.places)),
            "type": (max((tensor.type for tensor in message.outputs), default=0), len(self._tables.types)),
            "tensor": (max(message.inputs, default=0), known),
        }
        kind, (number, count) = next(item for item in references.items() if item[1][0] >= item[1][1])
        problem = f"unknown {kind} {number}; there are {count} before it"
        return SerializationError(problem, path, rule="R8", node=message.name)


def _check_lengths(message: Any, names: Iterable[str], limits: Limits, path: str, limit: str) -> None:
    """Refuse long lists before a record of each item, which may be two bytes in the file, is made."""
    most = getattr(limits, limit)
    for name in names:
        if (count := len(getattr(message, name))) > most:
            problem = f"{count} {name} are more than {most}"
            raise SerializationError(problem, f"{path}.{name}", rule="R2", hint=allow_more(limit))


def _symbol_record(message: Any) -> Record:
    record = {key: getattr(message, key) for key in ("min", "max", "dim") if message.HasField(key)}
    return {**record, "tensor": message.tensor}


def _read_extensions(text: str, limits: Limits, path: str) -> Record:
    """Read the user's own JSON object, by the rules of the document."""
    if not text:
        return {}
    try:
        document = parse_document(f'{{"extensions": {text}}}', limits)
    except SerializationError as error:
        raise SerializationError.of(error, path) from None
    if document.keys() != {"extensions"}:
        raise SerializationError("expected one JSON value", path, rule="R3")
    found: Record = document["extensions"]
    return found
