"""Build an ONNX model with the names of the graph; weights are declared without values."""

from __future__ import annotations

import json
from collections.abc import Mapping
from math import prod

import onnx_ir
import torch

from torch_ir._version import __version__
from torch_ir.analysis.memory.aliasing import counts_in_a_storage
from torch_ir.errors import ConversionError, UnsupportedOperatorsError
from torch_ir.ir import IR, TensorMeta
from torch_ir.ir.sizes.symbols import size_conditions
from torch_ir.ops.prepare_run import with_calls_inline
from torch_ir.ops.tensor_data import to_tensor
from torch_ir.ops.torch_types import TORCH_DTYPES
from torch_ir.passes.decompose.rewriting import rewritten
from torch_ir.targets.node_summary import describe
from torch_ir.targets.onnx.call_nodes import DOMAIN, OP_TYPE, graph_with_calls, shape_of
from torch_ir.targets.onnx.exact_operators import EXPORTED, MISTRANSLATED, complex_problem
from torch_ir.targets.onnx.onnx_program import unsupported
from torch_ir.targets.onnx.open_splits import with_slices
from torch_ir.targets.onnx.quantized_bias import with_separate_biases
from torch_ir.targets.onnx.value_names import name_values
from torch_ir.targets.standalone_functions import ConvertedFunctions, with_functions

_KEYS = "torch_ir.keys"  # of an initialiser without a value: its state-dict keys, as JSON
_NOWHERE = "weights-that-are-not-bound-yet"  # a file name that a runtime reports as missing


def onnx_model(ir: IR, opset: int, functions: str = "none") -> onnx_ir.Model:
    """Convert a graph, with each weight as an initialiser under its first key; only constants have values."""
    _refuse_places_in_storages(ir)
    _refuse_mistranslated(ir)
    ir = with_slices(with_separate_biases(with_functions(rewritten(ir, EXPORTED), functions)))
    write = _FunctionWriter(opset)
    made = ConvertedFunctions(write, set())
    called = made.called_by(ir)
    try:
        model = graph_with_calls(ir, opset, called)
    except UnsupportedOperatorsError as error:
        write.unsupported += error.missing
    if write.unsupported:
        raise unsupported(ir, write.unsupported)
    for function in made:
        model.functions[function.identifier()] = function
    name_values(ir, model.graph)
    _add_weights(ir, model.graph)
    model.graph.name = ir.model_name or "graph"
    model.producer_name, model.producer_version = "torch_ir", __version__
    model.metadata_props.update({"torch_ir.model": ir.model_name, "torch_ir.torch": torch.__version__})
    if conditions := size_conditions(ir):
        model.metadata_props["torch_ir.sizes"] = ", ".join(conditions)
    return model


def _refuse_places_in_storages(ir: IR) -> None:
    """Raise ConversionError for nodes that count in the storage of a view, which a function may get from its caller."""
    flat = with_calls_inline(ir)
    nodes = [(node, graph is not flat) for graph in flat.all_graphs() for node in graph.nodes]
    if strided := [node for node, inner in nodes if counts_in_a_storage(node, in_body=inner)]:
        name, lines = ir.model_name or "the graph", "\n  ".join(map(describe, strided))
        raise ConversionError(f"{name} cannot be converted to ONNX: places in the storage of a view:\n  {lines}")


def _refuse_mistranslated(ir: IR) -> None:
    """Raise ConversionError for nodes that torch's exporter would translate into another function."""
    nodes = list(with_calls_inline(ir).all_nodes())
    found = [
        f"{describe(node)} {reason}"
        for node in nodes
        for matches, reason in [MISTRANSLATED.get(node.op_type, (None, ""))]
        if matches is not None and matches(node)
    ]
    found += [f"{describe(node)} {reason}" for node in nodes if (reason := complex_problem(node))]
    if found:
        name, lines = ir.model_name or "the graph", "\n  ".join(found)
        raise ConversionError(f"{name} cannot be converted to ONNX: torch.onnx has no exact translation:\n  {lines}")


def weights_of(model: onnx_ir.Model) -> dict[str, tuple[str, ...]]:
    """Return the initialisers of weights with their keys, without constants of the graph."""
    named = {name: value.metadata_props.get(_KEYS) for name, value in model.graph.initializers.items()}
    return {name: tuple(json.loads(keys)) for name, keys in named.items() if keys is not None}


def settle_weights(model: onnx_ir.Model) -> None:
    """Turn weights into constants, which cannot be bound."""
    for value in model.graph.initializers.values():
        value.metadata_props.clear()


def plain(value: torch.Tensor) -> torch.Tensor:
    """Return a tensor in ONNX's format: row-major, a complex number as two."""
    real = torch.view_as_real(value.resolve_conj()) if value.is_complex() else value
    return real.detach().resolve_neg().cpu().contiguous()


# -- weights ----------------------------------------------------------------------------------------------------------


def _add_weights(ir: IR, graph: onnx_ir.Graph) -> None:
    """Register used weights, the last inputs, as initialisers; one that the model changes stays an input."""
    changing = {target for target, _ in ir.mutations}
    weights = list(graph.inputs[len(ir.graph_inputs) :])
    del graph.inputs[len(ir.graph_inputs) :]
    for tensor, value in zip(ir.params, weights, strict=True):
        if not value.uses():
            continue
        assert tensor.param is not None  # guaranteed by `check`
        data = tensor.param.data
        value.const_value = (
            _placeless(tensor, value)
            if data is None
            else onnx_ir.tensor_adapters.TorchTensor(plain(to_tensor(data)), name=value.name)
        )
        graph.register_initializer(value)
        if tensor in changing:
            graph.inputs.append(value)


def _placeless(tensor: TensorMeta, value: onnx_ir.Value) -> onnx_ir.ExternalTensor:
    """Return an unbound weight: an external tensor in a file that does not exist."""
    assert tensor.param is not None  # guaranteed by `check`
    assert value.name is not None  # `_name_values` gave it one
    value.metadata_props[_KEYS] = json.dumps(tensor.param.keys)
    size = prod(map(int, tensor.shape)) * TORCH_DTYPES[tensor.dtype].itemsize
    assert value.dtype is not None  # the exporter knows it
    return onnx_ir.ExternalTensor(_NOWHERE, None, size, value.dtype, shape=shape_of(tensor), name=value.name)


class _FunctionWriter:
    """Writes functions as ONNX functions of the domain `torch_ir`; `unsupported` are those that it cannot convert."""

    def __init__(self, opset: int) -> None:
        self.unsupported: list[str] = []
        self._opset = opset

    def __call__(self, body: IR, name: str, op_type: str, called: Mapping[str, onnx_ir.Function]) -> onnx_ir.Function:
        """Convert a body; one with unsupported operators is empty, so that those of all bodies are found."""
        try:
            graph = graph_with_calls(body, self._opset, called).graph
            name_values(body, graph)
            _make_constants(graph)
        except UnsupportedOperatorsError as error:
            self.unsupported += error.missing
            graph = onnx_ir.Graph([], [], nodes=[])
        function = onnx_ir.Function(DOMAIN, name, graph=graph, attributes=())
        function.metadata_props[OP_TYPE] = op_type
        return function


def _make_constants(graph: onnx_ir.Graph) -> None:
    """Replace initialisers by Constant nodes, because functions have no initialisers."""
    for value in [*graph.initializers.values()][::-1]:
        assert value.const_value is not None  # a folded constant; weights are inputs
        node = onnx_ir.node("Constant", [], {"value": value.const_value})
        (made,) = node.outputs
        made.name, made.type, made.shape = value.name, value.type, value.shape
        onnx_ir.convenience.replace_all_uses_with(value, made)
        del graph.initializers[str(value.name)]
        graph.insert_before(graph[0], node)
