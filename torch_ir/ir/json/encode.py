"""Encode an IR as the JSON document: documented fields in documented order, followed by ours."""

from __future__ import annotations

import base64
import itertools
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from torch_ir.errors import SerializationError
from torch_ir.ir.graph.constant_data import TensorData
from torch_ir.ir.graph.io_tree import call, flat
from torch_ir.ir.graph.tensor import Param, TensorMeta, bare
from torch_ir.ir.json.json_text import Lines, write_document
from torch_ir.ir.json.json_values import encode, plain_json
from torch_ir.ir.json.node_codec import node_lines
from torch_ir.ir.sizes.symbols import Symbol

if TYPE_CHECKING:
    from torch_ir.ir.graph.graph import IR

FORMAT = "torch-ir"
VERSION = 1
MAX_FUNCTION_DEPTH = 20


Places = Mapping[TensorData, dict[str, Any]]  # records of constants stored outside the document


def graph_document(
    ir: IR, places: Places = MappingProxyType({}), nodes: Callable[[IR], Any] | None = None
) -> dict[str, Any]:
    """Return the document of a graph with its header; constants in `places` are references.

    `nodes`, if given, replaces the node records of a graph or function.
    """
    return {"format": FORMAT, "version": VERSION, **_graph_record(ir, places, nodes or _records)}


def graph_text(ir: IR, places: Places = MappingProxyType({})) -> str:
    """Return the text of the file."""
    try:
        lines = Lines(node_lines(ir.nodes))
        return write_document(graph_document(ir, places, lambda graph: lines if graph is ir else _records(graph)))
    except TypeError as error:  # a name that is not a string
        raise SerializationError(f"cannot be written as JSON: {error}", rule="R17") from None


def _records(ir: IR) -> list[dict[str, Any]]:
    return [node.to_dict() for node in ir.nodes]


def constants_over(ir: IR, limit: int) -> Iterator[tuple[str, TensorData]]:
    """Yield the constants of a graph and its functions that are larger than `limit` bytes."""
    for graph in ir.all_graphs():
        yield from ((key, data) for key, data in graph.constants.items() if data.size > limit)


def _graph_record(
    ir: IR,
    places: Places,
    nodes: Callable[[IR], Any],
    outer: Mapping[str, TensorMeta] = MappingProxyType({}),
    depth: int = 0,
) -> dict[str, Any]:
    if depth > MAX_FUNCTION_DEPTH:
        raise SerializationError(f"functions are nested deeper than {MAX_FUNCTION_DEPTH} levels", rule="R2")
    shared = shared_weights(outer, ir)
    around = {tensor.name: tensor for tensor in ir.params} if ir.functions else {}
    own = ir.params[len(shared) :]
    record: dict[str, Any] = {
        "model_name": ir.model_name,
        "pytorch_version": ir.pytorch_version,
        "graph_inputs": [bare(tensor) for tensor in ir.graph_inputs],
        "graph_outputs": [bare(tensor) for tensor in ir.graph_outputs],
        "weights": [{**bare(tensor), "name": tensor.key or tensor.name} for tensor in own],
        "weight_name_mapping": {tensor.name: tensor.key or tensor.name for tensor in own},
        "nodes": nodes(ir),
    }
    beside: dict[str, Any] = {
        "constants": {
            tensor.key or tensor.name: _data_record(tensor.param.data, places)
            for tensor in own
            if tensor.param and tensor.param.data
        },
        "params": {tensor.name: _param_record(tensor.param) for tensor in own if tensor.param},
        "shared_weights": [tensor.name for tensor in shared],
        "mutations": [{"target": target.name, "value": value.name} for target, value in ir.mutations],
        "symbols": {symbol.name: _symbol_record(symbol) for symbol in ir.symbols.values()},
        "constraints": ir.constraints,
        "input_tree": None if ir.input_tree == call(len(ir.graph_inputs)) else encode(ir.input_tree),
        "output_tree": None if ir.output_tree == flat(len(ir.graph_outputs)) else {"tree": encode(ir.output_tree)},
        "functions": {
            name: _graph_record(body, places, nodes, around, depth + 1) for name, body in ir.functions.items()
        },
        "device": None if ir.device == "cpu" else ir.device,
        "mesh": ir.mesh,
        "fixed_layout": ir.fixed_layout,
        "modules": ir.modules,
        "extensions": plain_json(ir.extensions, "$.extensions"),
    }
    record.update((key, value) for key, value in beside.items() if value)
    return record


def shared_weights(outer: Mapping[str, TensorMeta], ir: IR) -> list[TensorMeta]:
    """Return the leading weights of a function that are also those of the enclosing graph, by name in `outer`."""

    def is_shared(tensor: TensorMeta) -> bool:
        same = outer.get(tensor.name)
        return same is not None and same.param == tensor.param and bare(same) == bare(tensor)

    return list(itertools.takewhile(is_shared, ir.params))


def _param_record(param: Param) -> dict[str, Any]:
    record: dict[str, Any] = {"kind": param.kind}
    if len(param.keys) > 1:
        record["tied"] = list(param.keys[1:])
    return record


def _data_record(data: TensorData, places: Places) -> dict[str, Any]:
    facts = {"shape": list(data.shape), "dtype": data.dtype}
    if places and data in places:  # hashing reads the bytes of a constant
        return {**facts, **places[data]}
    return {**facts, "base64": base64.b64encode(data.raw).decode("ascii")}


def _symbol_record(symbol: Symbol) -> dict[str, Any]:
    record: dict[str, Any] = {"min": symbol.min, "max": symbol.max}
    if symbol.tensor is not None:
        record["tensor"] = symbol.tensor.name
        record["dim"] = symbol.dim
    return {key: value for key, value in record.items() if value is not None}
