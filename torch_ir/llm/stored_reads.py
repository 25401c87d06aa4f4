"""Let a graph read the tensors of a checkpoint: renamed, cast, converted or dequantised by nodes of the graph."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from torch_ir.analysis.values.prologue import is_fixed
from torch_ir.capture.naming.export_names import weight_name
from torch_ir.errors import ExportError
from torch_ir.ir import IR, Dtype, FunctionRef, OpNode, Origin, Param, TensorMeta
from torch_ir.ir.graph.free_names import Names, fresh
from torch_ir.ir.graph.origins import common_origin
from torch_ir.ir.regroup.functions import FUSED, called_by, drop_unused, enclose, inline_all, read_by
from torch_ir.ir.regroup.shared_functions import SharedFunctions
from torch_ir.ops.torch_types import dtype_name

_ASSERTION = "aten._assert_tensor_metadata.default"

if TYPE_CHECKING:
    from torch_ir.ir.json.json_fields import Dim
    from torch_ir.llm.checkpoint_layout import Conversion, Layout
    from torch_ir.llm.quantized import StoredWeight


class Rewriting:
    """Let one graph read the tensors of the checkpoint, through nodes before its own."""

    def __init__(self, graph: IR, layout: Layout, in_layers: bool) -> None:
        self.graph, self.layout, self.in_layers = graph, layout, in_layers
        known = {*layout.converted, *(key for key, stored in layout.renamed.items() if stored in layout.quantized)}
        self.taken = Names(
            tensor.name for tensor in graph.tensors() if not tensor.param or known.isdisjoint(tensor.param.keys)
        )
        self.taken |= {node.name for node in graph.nodes}
        self.functions = Names(graph.functions)
        self.shared: dict[IR, tuple[str, IR]] = {}  # recorded dequantisation -> its function in this graph
        self.params: dict[str, TensorMeta] = {}  # by key of the checkpoint
        self.sources: dict[str, TensorMeta] = {}  # float weights by key of a checkpoint that is not quantised
        self.nodes: list[OpNode] = []
        self.dequantizing: list[OpNode] = []

    def run(self) -> None:
        """Rewrite the graph."""
        graph, layout = self.graph, self.layout
        written = {target for target, _ in graph.mutations}
        results: dict[str, TensorMeta] = {}
        for param in list(graph.params):
            if param.param is None or not param.param.in_state_dict:
                continue
            key = next((key for key in param.param.keys if key in layout.converted), None)
            if key is None:
                self._rename(param, param in written)
                continue
            if param in written:
                raise ExportError(f"{key!r} is converted on loading and changed by the model, which is not supported")
            if key not in results:
                results.update(self._converted(layout.converted[key]))
            param.replace_all_uses_with(results[key])
        graph.params = [param for param in graph.params if param.consumers or param in written]
        graph.params += [param for param in self.params.values() if param.consumers and param not in graph.params]
        graph.nodes = [*self.nodes, *graph.nodes]
        if self.in_layers:
            run_with_readers(graph, self.dequantizing)

    def _rename(self, param: TensorMeta, is_written: bool) -> None:
        """Let a weight that is not converted have the keys and the dtype of the checkpoint."""
        assert param.param is not None
        keys = tuple(dict.fromkeys(self.layout.renamed.get(key, key) for key in param.param.keys))
        stored = next((key for key in keys if key in self.layout.quantized), None)
        dtype = next((name for key in keys if (name := self._dtype(key)) is not None), param.dtype)
        if stored is None and dtype == param.dtype:
            param.param = replace(param.param, keys=keys)
            return
        if is_written:
            raise ExportError(
                f"{keys[0]!r} is changed by the model and stored in another dtype, which is not supported"
            )
        if stored is None:
            self.params[keys[0]] = TensorMeta(
                fresh(param.name, self.taken),
                param.shape,
                dtype,
                stride=param.stride,
                param=replace(param.param, keys=keys),
            )
        param.replace_all_uses_with(self._source(stored or keys[0], param.shape, param.dtype, ""))

    def _dtype(self, key: str) -> str | None:
        found = self.layout.dtypes.get(key)
        return None if found is None else dtype_name(found)

    def _source(self, key: str, shape: Sequence[Dim], dtype: str, module: str) -> TensorMeta:
        """Return a float weight: a tensor of the checkpoint, cast if it has another dtype, or dequantised."""
        if key in self.sources:
            return self.sources[key]
        weight = self.layout.quantized.get(key)
        origin = Origin(module or key.rpartition(".")[0])
        if weight is not None:
            self.sources[key] = self._dequantized(key, weight, origin)
            return self.sources[key]
        param = self.params.get(key) or self._param(key, shape, self._dtype(key) or dtype)
        self.sources[key] = param
        if param.dtype != dtype:
            cast = TensorMeta(fresh(f"{param.name}_{dtype}", self.taken), shape, dtype)
            attrs = {"dtype": Dtype(dtype), "non_blocking": False, "copy": False, "memory_format": None}
            self.nodes.append(OpNode(cast.name, "aten.to.dtype", [param], [cast], attrs, args=["self"], origin=origin))
            self.sources[key] = cast
        return self.sources[key]

    def _param(self, key: str, shape: Sequence[Dim], dtype: str) -> TensorMeta:
        if key not in self.params:
            name = fresh(weight_name("p", key), self.taken)
            self.params[key] = TensorMeta(name, shape, dtype, param=Param((key,)))
        return self.params[key]

    def _converted(self, conversion: Conversion) -> dict[str, TensorMeta]:
        """Append the nodes of a conversion; return what they compute, by key of the model."""
        body = self.layout.conversion(conversion)
        module = conversion.first.rpartition(".")[0]
        given = {}
        for param in body.params:
            key = conversion.sources[int((param.key or "").rpartition(".")[2])]
            given[param] = self._source(key, param.shape, param.dtype, module)
        _, outputs = self._append(body, given, Origin(module))
        return dict(zip(conversion.targets, outputs, strict=True))

    def _dequantized(self, key: str, weight: StoredWeight, origin: Origin) -> TensorMeta:
        """Append a call of the function that dequantises weights like this one, or its nodes."""
        body = self.layout.dequantization(weight)
        keys = list(weight.tensors)
        given = {
            param: self._param(keys[int((param.key or "").rpartition(".")[2])], param.shape, param.dtype)
            for param in body.params
        }
        if self.in_layers:
            nodes, (output,) = self._append(body, given, origin)
            self.dequantizing += nodes
            return output
        name, function = self._function(body, weight)
        inputs = [given[param] for param in body.params]
        output = function.graph_outputs[0].copy(fresh(weight_name("w", key), self.taken))
        args = [tensor.name for tensor in function.graph_inputs]
        attrs = {"function": FunctionRef(name)}
        kind = f"{FUSED}dequantize_{weight.format}"
        self.nodes.append(OpNode(output.name, kind, inputs, [output], attrs, args=args, origin=origin))
        return output

    def _function(self, body: IR, weight: StoredWeight) -> tuple[str, IR]:
        """Return the function of the graph that computes this dequantisation, and its name."""
        if body not in self.shared:
            copy = body.clone()
            keys = list(weight.tensors)
            reads = [
                (keys[int((param.key or "").rpartition(".")[2])].rpartition(".")[2], param) for param in copy.params
            ]
            name = fresh(f"dequantize_{weight.format}", self.functions)
            _, function = enclose(copy, copy.nodes, reads, Origin())
            self.shared[body] = name, function
            self.graph.functions[name] = function
        return self.shared[body]

    def _append(
        self, body: IR, given: Mapping[TensorMeta, TensorMeta], origin: Origin
    ) -> tuple[list[OpNode], list[TensorMeta]]:
        """Append copies of the nodes of a graph, and return them and what they compute."""
        here = dict(given)
        first = len(self.nodes)
        for node in body.nodes:
            for tensor in node.outputs:
                here[tensor] = tensor.copy(fresh(tensor.name, self.taken))
            name = here[node.outputs[0]].name if len(node.outputs) == 1 else fresh(node.name, self.taken)
            copied = node.copy(here.__getitem__, name)
            copied.origin, copied.origins = origin, (name,)
            self.nodes.append(copied)
        return self.nodes[first:], [here[tensor] for tensor in body.graph_outputs]


def run_with_readers(graph: IR, dequantizing: Iterable[OpNode]) -> None:
    """Move the nodes that compute dequantised weights into fused operators with the nodes that read them.

    before   w = mul(q, s);  y = linear(x, w)
    after    y = fused.dequantize_linear(input=x, weight=q, scale=s, function=@dequantize_linear)
    """
    moving = set(dequantizing)
    for node in graph.nodes:
        is_over_weights = all(tensor.param or tensor.producer in moving for tensor in node.inputs)
        if is_over_weights and node.inputs and node.outputs and is_fixed(node, graph.functions):
            moving.update([node] if any(tensor.producer in moving for tensor in node.inputs) else [])
    sizes = {symbol.tensor for symbol in graph.symbols.values()}
    shared = SharedFunctions(graph)
    nodes: list[OpNode] = []
    kept = {tensor.producer for tensor in graph.returns.inputs}
    for node in graph.nodes:
        reads = [tensor for tensor in node.inputs if tensor.producer in moving]
        if reads and node.op_type == _ASSERTION:
            node.inputs = ()  # of a dtype that the nodes themselves determine
        elif node in moving or not reads or not sizes.isdisjoint(node.outputs):
            nodes.append(node)
            kept.update(tensor.producer for tensor in reads if node not in moving)
        else:
            nodes.append(_called(graph, node, _before(node, moving), shared))
    needed = {below for node in kept if node in moving for below in (node, *_before(node, moving))}
    for node in moving - needed:
        node.inputs = ()
    called = called_by(graph.nodes)
    graph.nodes = [node for node in nodes if node not in moving or node in needed]
    drop_unused(graph, called)


def _before(reader: OpNode, moving: set[OpNode]) -> list[OpNode]:
    """Return the moving nodes that a node depends on, in order."""
    found: dict[OpNode, None] = {}
    left = [reader]
    while left:
        for tensor in reversed(left.pop().inputs):
            if tensor.producer in moving and tensor.producer not in found:
                assert tensor.producer is not None
                found[tensor.producer] = None
                left.append(tensor.producer)
    return _in_order(found)


def _in_order(nodes: Iterable[OpNode]) -> list[OpNode]:
    """Sort nodes so that each follows its producers."""
    left, placed = dict.fromkeys(nodes), dict[OpNode, None]()
    stack = [(node, False) for node in reversed(left)]
    while stack:
        node, is_ready = stack.pop()
        if node in placed:
            continue
        if is_ready:
            placed[node] = None
            continue
        stack.append((node, True))
        stack += [(tensor.producer, False) for tensor in node.inputs if tensor.producer in left]
    return list(placed)


def _called(graph: IR, reader: OpNode, before: Sequence[OpNode], shared: SharedFunctions) -> OpNode:
    """Return one call of copies of these nodes and of their reader, in whose place it is.

    If the reader is itself a call, such as that of a layer, the nodes become part of its body.
    """
    here: dict[TensorMeta, TensorMeta] = {}
    inside: list[OpNode] = []

    def moved(tensor: TensorMeta) -> TensorMeta:
        return here.get(tensor, tensor)

    for node in before:
        here.update((tensor, tensor.copy()) for tensor in node.outputs)
        inside.append(node.copy(moved))
    names = dict(zip(reader.inputs, reader.args, strict=True))
    reader.inputs = [moved(tensor) for tensor in reader.inputs]
    inside.append(reader)
    reads = [(_argument(tensor, names), tensor) for tensor in read_by(inside)]
    call, body = enclose(graph, inside, reads, reader.origin if reader.is_call else common_origin(inside))
    call.name = reader.name
    if reader.is_call:
        moving = body.nodes[:-1]
        inline_all(body, lambda node: node is body.nodes[-1])
        run_with_readers(body, moving)
        call.op_type, name = reader.op_type, str(reader.attrs["function"])
    else:
        name = f"dequantize_{reader.op_type.split('.')[1]}"
        call.op_type = f"{FUSED}{name}"
    shared.bind(call, body, name)
    return call


def _argument(tensor: TensorMeta, names: Mapping[TensorMeta, str]) -> str:
    """Return the name of an argument: as the reader calls it, or as the checkpoint does."""
    return names.get(tensor, (tensor.key or tensor.name).rpartition(".")[2]).replace(".", "_")
