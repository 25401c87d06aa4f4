"""IR to the JSON document: the documented fields in the documented order, ours beside them."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any

from torch_ir.errors import SerializationError
from torch_ir.ir.data import TensorData
from torch_ir.ir.encoding import encode, plain_json
from torch_ir.ir.structure import call, flat
from torch_ir.ir.symbols import Symbol
from torch_ir.ir.tensor import Param, bare

if TYPE_CHECKING:
    from torch_ir.ir.graph import IR

FORMAT = "torch-ir"
VERSION = 1
MAX_FUNCTION_DEPTH = 20


def graph_document(ir: IR) -> dict[str, Any]:
    """The whole document of a graph, with its header."""
    return {"format": FORMAT, "version": VERSION, **_graph_record(ir)}


def _graph_record(ir: IR, depth: int = 0) -> dict[str, Any]:
    if depth > MAX_FUNCTION_DEPTH:
        raise SerializationError(f"functions are nested deeper than {MAX_FUNCTION_DEPTH} levels")
    record: dict[str, Any] = {
        "model_name": ir.model_name,
        "pytorch_version": ir.pytorch_version,
        "graph_inputs": [bare(tensor) for tensor in ir.graph_inputs],
        "graph_outputs": [bare(tensor) for tensor in ir.graph_outputs],
        "weights": [bare(tensor) for tensor in ir.weights],
        "weight_name_mapping": ir.weight_name_mapping,
        "nodes": [node.to_dict() for node in ir.nodes],
    }
    beside: dict[str, Any] = {
        "constants": {key: _data_record(data) for key, data in ir.constants.items()},
        "params": {tensor.name: _param_record(tensor.param) for tensor in ir.params if tensor.param},
        "mutations": [{"target": target.name, "value": value.name} for target, value in ir.mutations],
        "symbols": {symbol.name: _symbol_record(symbol) for symbol in ir.symbols.values()},
        "constraints": ir.constraints,
        "input_tree": None if ir.input_tree == call(len(ir.graph_inputs)) else encode(ir.input_tree),
        "output_tree": None if ir.output_tree == flat(len(ir.graph_outputs)) else {"tree": encode(ir.output_tree)},
        "functions": {name: _graph_record(body, depth + 1) for name, body in ir.functions.items()},
        "device": None if ir.device == "cpu" else ir.device,
        "mesh": ir.mesh,
        "extensions": plain_json(ir.extensions, "$.extensions"),
    }
    record.update((key, value) for key, value in beside.items() if value)
    return record


def _param_record(param: Param) -> dict[str, Any]:
    record: dict[str, Any] = {"kind": param.kind}
    if len(param.keys) > 1:
        record["tied"] = list(param.keys[1:])
    return record


def _data_record(data: TensorData) -> dict[str, Any]:
    text = base64.b64encode(data.raw).decode("ascii")
    return {"shape": list(data.shape), "dtype": data.dtype, "base64": text}


def _symbol_record(symbol: Symbol) -> dict[str, Any]:
    record: dict[str, Any] = {"min": symbol.min, "max": symbol.max}
    if symbol.tensor is not None:
        record["tensor"] = symbol.tensor.name
        record["dim"] = symbol.dim
    return {key: value for key, value in record.items() if value is not None}
