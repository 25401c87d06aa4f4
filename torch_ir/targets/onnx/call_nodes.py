"""Convert a graph with calls: torch's exporter converts the other nodes, and the calls are inserted into its result.

For the exporter, results of calls are inputs, and arguments of calls are outputs:

    graph      a = embedding(ids);  b = Block(a);  c = Block(b);  return relu(c)
    exported   a, relu(c) as functions of ids and c
    result     a = ...(ids);  b = torch_ir.Block(a);  c = torch_ir.Block(b);  return ...(c)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import onnx_ir
import torch

from torch_ir.errors import ConversionError
from torch_ir.ir import IR, OpNode, TensorMeta
from torch_ir.ir.graph.free_names import fresh
from torch_ir.ops.torch_types import TORCH_DTYPES
from torch_ir.targets.onnx.onnx_program import NODE, onnx_program, optimize_program, origin_of, quiet
from torch_ir.targets.standalone_functions import calls_of

DOMAIN = "torch_ir"  # of functions
VERSION = 1
MODULE = "torch_ir.module"  # metadata of a node: the path of its module
OP_TYPE = "torch_ir.op_type"  # metadata of a function: the operator or class that it computes


def graph_with_calls(ir: IR, opset: int, functions: Mapping[str, onnx_ir.Function]) -> onnx_ir.Model:
    """Convert a graph, given its functions: inputs, then weights, to outputs, then new values of changed tensors."""
    calls = calls_of(ir)
    inside = set(calls)
    others = [node for node in ir.nodes if node not in inside]
    made = dict.fromkeys(tensor for call in calls for tensor in call.outputs)
    declared = [*ir.graph_inputs, *ir.params]
    crossing = dict.fromkeys(tensor for call in calls for tensor in call.inputs)
    given = [*ir.graph_inputs, *(tensor for tensor in (*ir.params, *made) if _is_read(tensor, inside))]
    wanted = [*ir.returns.inputs, *(tensor for tensor in crossing if tensor not in made and tensor not in declared)]
    model, values = _converted(ir, others, given, wanted, opset)
    values.update((tensor, value_of(tensor)) for tensor in declared if tensor not in values)
    graph = model.graph
    graph.inputs.clear()
    graph.outputs.clear()
    graph.inputs.extend(values[tensor] for tensor in declared)
    if calls:
        _insert(ir, calls, graph, values, functions)
        graph.opset_imports[DOMAIN] = VERSION
    graph.outputs.extend(values[tensor] for tensor in ir.returns.inputs)
    return model


def value_of(tensor: TensorMeta) -> onnx_ir.Value:
    """Return a new value with the name, shape and dtype of a tensor."""
    dtype = TORCH_DTYPES[tensor.dtype]
    kind = torch.empty((), dtype=dtype, device="meta").real.dtype if dtype.is_complex else dtype
    found = onnx_ir.tensor_adapters.from_torch_dtype(kind)
    return onnx_ir.Value(name=tensor.name, type=onnx_ir.TensorType(found), shape=shape_of(tensor))


def shape_of(tensor: TensorMeta) -> onnx_ir.Shape:
    """Return a shape; a complex number is two."""
    return onnx_ir.Shape([*tensor.shape, 2] if TORCH_DTYPES[tensor.dtype].is_complex else tensor.shape)


def _is_read(tensor: TensorMeta, calls: set[OpNode]) -> bool:
    return any(reader not in calls for reader in tensor.consumers)


def _converted(
    ir: IR, nodes: Sequence[OpNode], given: Sequence[TensorMeta], wanted: Sequence[TensorMeta], opset: int
) -> tuple[onnx_ir.Model, dict[TensorMeta, onnx_ir.Value]]:
    """Convert nodes with torch's exporter; return its model, and the values of `given` and `wanted` in it."""
    with quiet(), torch.no_grad():
        program = onnx_program(ir, nodes, given, wanted, opset)
        _keep_origins(program.model.graph, {node.name: node for node in nodes})
        program.rename_axes(_axes(ir, given, program.model.graph.inputs))
        optimize_program(ir, program)
    graph = program.model.graph
    graph.metadata_props.clear()
    _convert_outputs(graph, wanted)
    values = dict(zip(wanted, graph.outputs, strict=True))
    return program.model, values | dict(zip(given, graph.inputs, strict=True))


def _convert_outputs(graph: onnx_ir.Graph, wanted: Sequence[TensorMeta]) -> None:
    """Give outputs the dtypes of the graph: the exporter leaves sums of float16 in float32."""
    for index, tensor in enumerate(wanted):
        found, dtype = graph.outputs[index], value_of(tensor).dtype
        if dtype is not None and found.dtype not in (None, dtype):
            cast = onnx_ir.node("Cast", [found], {"to": dtype})
            graph.append(cast)
            (made,) = cast.outputs
            made.type, made.shape = onnx_ir.TensorType(dtype), found.shape
            graph.outputs[index] = made


def _insert(
    ir: IR,
    calls: Sequence[OpNode],
    graph: onnx_ir.Graph,
    values: dict[TensorMeta, onnx_ir.Value],
    functions: Mapping[str, onnx_ir.Function],
) -> None:
    """Add calls to a graph; their results replace the inputs that the exporter was given for them."""
    nodes = list(graph.all_nodes())
    taken = {str(value.name) for value in (*graph.inputs, *graph.initializers.values())}
    taken.update(str(value.name) for node in nodes for value in node.outputs)
    names = {str(node.name) for node in nodes}
    for call in calls:
        for tensor in call.outputs:
            result = value_of(tensor)
            result.name = fresh(tensor.name, taken)
            if tensor in values:
                _measure_inputs(ir, tensor, values)
                onnx_ir.convenience.replace_all_uses_with(values[tensor], result)
            values[tensor] = result
    for call in calls:
        function = functions[call.attrs["function"]]
        given = dict(zip(call.args, call.inputs, strict=True))
        node = onnx_ir.Node(
            function.domain,
            function.name,
            [values[given[tensor.name]] for tensor in ir.functions[call.attrs["function"]].graph_inputs],
            outputs=[values[tensor] for tensor in call.outputs],
            name=fresh(f"node_{call.name}", names),
            metadata_props=_origin(call),
        )
        graph.append(node)
    try:
        graph.sort()
    except ValueError:  # a cycle
        name = ir.model_name or "the graph"
        raise ConversionError(
            f"the functions of {name} cannot be kept: torch.export reads a size that an argument of a call needs from "
            'the result of the call; use functions="none"'
        ) from None


def _measure_inputs(ir: IR, tensor: TensorMeta, values: Mapping[TensorMeta, onnx_ir.Value]) -> None:
    """Make nodes that read a size of a call's result read it from the input that determines it.

    The exporter treats equal sizes as one and may read them anywhere, also for a node that the call depends on.
    """
    for node in values[tensor].consumers():
        start, end = (node.attributes.get_int(name, None) for name in ("start", "end"))
        if node.op_type == "Shape" and start is not None and end == start + 1:
            symbol = ir.symbols.get(str(tensor.shape[start]))
            if symbol is not None and symbol.tensor is not None and symbol.dim is not None:
                node.replace_input_with(0, values[symbol.tensor])
                node.attributes["start"] = onnx_ir.AttrInt64("start", symbol.dim)
                node.attributes["end"] = onnx_ir.AttrInt64("end", symbol.dim + 1)


def _keep_origins(graph: onnx_ir.Graph, nodes: Mapping[str, OpNode]) -> None:
    """Store in each node's metadata its node of the graph and its module, and nothing else."""
    for made in graph.all_nodes():
        node = nodes.get(origin_of(made.meta["node"])) if "node" in made.meta else None
        made.metadata_props.clear()
        if node is not None:
            made.metadata_props.update(_origin(node))


def _origin(node: OpNode) -> dict[str, str]:
    return {NODE: node.name, **({MODULE: node.origin.module} if node.origin.module else {})}


def _axes(ir: IR, given: Sequence[TensorMeta], inputs: Sequence[onnx_ir.Value]) -> dict[str | onnx_ir.SymbolicDim, str]:
    """Map torch's names of sizes to those of the graph."""
    axes: dict[str | onnx_ir.SymbolicDim, str] = {}
    for tensor, value in zip(given, inputs, strict=True):
        for dim, found in zip(tensor.shape, value.shape or (), strict=False):  # complex tensors have one more
            if dim in ir.symbols and isinstance(found, onnx_ir.SymbolicDim):
                axes[str(found.value)] = str(dim)
    return axes
