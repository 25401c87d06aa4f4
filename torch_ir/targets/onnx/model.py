"""Build an ONNX model with the names of the graph; weights are declared without values."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from math import prod

import onnx_ir
import torch

from torch_ir._version import __version__
from torch_ir.ir import IR, OpNode, TensorMeta
from torch_ir.ir.graph.free_names import fresh
from torch_ir.ops.prepare_run import with_calls_inline
from torch_ir.ops.tensor_data import to_tensor
from torch_ir.ops.torch_types import TORCH_DTYPES
from torch_ir.targets.onnx.onnx_program import NODE, onnx_program, optimize_program, origin_of, quiet

_MODULE = "torch_ir.module"  # of a node: the path of its module
_KEYS = "torch_ir.keys"  # of an initialiser without a value: its state-dict keys, as JSON
_NOWHERE = "weights-that-are-not-bound-yet"  # a file name that a runtime reports as missing


def onnx_model(ir: IR, opset: int) -> onnx_ir.Model:
    """Convert a graph, with each weight as an initialiser under its first key; only constants have values."""
    ir = with_calls_inline(ir)
    with quiet(), torch.no_grad():
        program = onnx_program(ir, opset)
        _keep_origins(program.model.graph, {node.name: node for node in ir.nodes})
        program.rename_axes(_axes(ir, program.model.graph.inputs))
        optimize_program(ir, program)
    model = program.model
    _name_values(ir, model.graph)
    model.graph.name = ir.model_name or "graph"
    model.graph.metadata_props.clear()
    model.producer_name, model.producer_version = "torch_ir", __version__
    model.metadata_props.update({"torch_ir.model": ir.model_name, "torch_ir.torch": torch.__version__})
    return model


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


def _keep_origins(graph: onnx_ir.Graph, nodes: Mapping[str, OpNode]) -> None:
    """Store in each node's metadata its node of the graph and its module, and nothing else."""
    for made in graph.all_nodes():
        node = nodes.get(origin_of(made.meta["node"])) if "node" in made.meta else None
        made.metadata_props.clear()
        if node is not None:
            made.metadata_props[NODE] = node.name
            if node.origin.module:
                made.metadata_props[_MODULE] = node.origin.module


def _axes(ir: IR, inputs: Sequence[onnx_ir.Value]) -> dict[str | onnx_ir.SymbolicDim, str]:
    """Map torch's names of sizes to those of the graph."""
    axes: dict[str | onnx_ir.SymbolicDim, str] = {}
    for tensor, value in zip(ir.graph_inputs, inputs, strict=False):  # weights come after the inputs
        for dim, found in zip(tensor.shape, value.shape or (), strict=False):  # complex tensors have one more
            if dim in ir.symbols and isinstance(found, onnx_ir.SymbolicDim):
                axes[str(found.value)] = str(dim)
    return axes


# -- names ------------------------------------------------------------------------------------------------------------


def _name_values(ir: IR, graph: onnx_ir.Graph) -> None:
    """Give inputs, outputs and weights the names of the graph; rename other values that conflict."""
    count = len(ir.graph_inputs)
    given, weights = list(graph.inputs[:count]), list(graph.inputs[count:])
    _separate_outputs(graph)
    changed = [f"{target.key or target.name}.new" for target, _ in ir.mutations]
    wanted = [
        *zip(given, [tensor.name for tensor in ir.graph_inputs], strict=True),
        *zip(weights, [tensor.key or tensor.name for tensor in ir.params], strict=True),
        *zip(graph.outputs, [*(tensor.name for tensor in ir.graph_outputs), *changed], strict=True),
    ]
    taken: set[str] = set()
    names = {value: fresh(name, taken) for value, name in wanted}
    for value in _inner_values(graph):
        if value not in names and value.name in taken:
            names[value] = fresh(value.name, taken)
    del graph.inputs[count:]
    for value, name in names.items():
        value.name = name
        value.metadata_props.clear()
    for tensor, value in zip([*ir.graph_inputs, *ir.returns.inputs], [*given, *graph.outputs], strict=True):
        value.shape = onnx_ir.Shape([*tensor.shape, 2] if _is_complex(tensor) else tensor.shape)
    _add_weights(ir, graph, weights)


def _separate_outputs(graph: onnx_ir.Graph) -> None:
    """Insert Identity nodes so that no output is an input, a weight or another output: a value has one name."""
    seen = set(graph.inputs)
    for index, value in enumerate(graph.outputs):
        if value in seen:
            copy = onnx_ir.node("Identity", [value])
            graph.append(copy)
            copy.outputs[0].type = value.type
            graph.outputs[index] = copy.outputs[0]
        seen.add(graph.outputs[index])


def _inner_values(graph: onnx_ir.Graph) -> Iterator[onnx_ir.Value]:
    """Yield results of nodes, constants and inputs of control flow bodies, whose names must be unique in ONNX too."""
    for scope in (graph, *graph.subgraphs()):
        yield from scope.initializers.values()
    for body in graph.subgraphs():
        yield from body.inputs
    for node in graph.all_nodes():
        yield from node.outputs


def _is_complex(tensor: TensorMeta) -> bool:
    return TORCH_DTYPES[tensor.dtype].is_complex


# -- weights ----------------------------------------------------------------------------------------------------------


def _add_weights(ir: IR, graph: onnx_ir.Graph, weights: Sequence[onnx_ir.Value]) -> None:
    """Register used weights as initialisers; one that the model changes is also an input."""
    changing = {target for target, _ in ir.mutations}
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
    shape = [int(dim) for dim in tensor.shape]
    size = prod(shape) * TORCH_DTYPES[tensor.dtype].itemsize
    laid = onnx_ir.Shape([*shape, 2] if _is_complex(tensor) else shape)
    assert value.dtype is not None  # the exporter knows it
    return onnx_ir.ExternalTensor(_NOWHERE, None, size, value.dtype, shape=laid, name=value.name)
