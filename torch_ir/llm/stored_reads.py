"""Make a graph read the tensors of a checkpoint: renamed, cast, converted or dequantised by nodes of the graph."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from torch_ir.analysis.dependencies.order import topological_order
from torch_ir.analysis.values.prologue import is_fixed
from torch_ir.capture.naming.export_names import weight_name
from torch_ir.errors import ExportError
from torch_ir.ir import IR, Dtype, FunctionRef, OpNode, Origin, Param, TensorMeta
from torch_ir.ir.graph.free_names import Names, fresh
from torch_ir.ir.graph.origins import common_origin, seen_from
from torch_ir.ir.graph.tensor import INDEX, STACK
from torch_ir.ir.regroup.functions import FUSED, called_by, drop_unused, enclose, inline_all, read_by
from torch_ir.ops.torch_types import dtype_name

_ASSERTION = "aten._assert_tensor_metadata.default"

if TYPE_CHECKING:
    from torch_ir.ir.json.json_fields import Dim
    from torch_ir.llm.checkpoint_layout import Conversion, Layout


class Rewriting:
    """Make one graph read the tensors of the checkpoint, through nodes before its own."""

    def __init__(self, graph: IR, layout: Layout, in_layers: bool) -> None:
        self.graph, self.layout, self.in_layers = graph, layout, in_layers
        self.taken = Names(
            tensor.name
            for tensor in graph.tensors()
            if not tensor.param or not any(key in layout.converted for key in tensor.param.keys)
        )
        self.taken |= {node.name for node in graph.nodes}
        self.functions = Names(graph.functions)
        self.shared: dict[IR, tuple[str, IR]] = {}  # recorded dequantisation -> its function in this graph
        self.params: dict[str, TensorMeta] = {}  # by key of the checkpoint
        self.sources: dict[str, TensorMeta] = {}  # the same in the dtypes that conversions need
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
        """Give a weight that is not converted the keys and the dtype of the checkpoint."""
        assert param.param is not None
        keys = tuple(dict.fromkeys(self.layout.renamed.get(key, key) for key in param.param.keys))
        param.param = replace(param.param, keys=keys)
        dtype = next((found for key in keys if (found := self._dtype(key)) is not None), param.dtype)
        if dtype == param.dtype:
            return
        if is_written:
            raise ExportError(
                f"{keys[0]!r} is changed by the model and stored in another dtype, which is not supported"
            )
        stored = param.copy(fresh(param.name, self.taken))
        stored.dtype = dtype
        self.params[keys[0]] = stored
        param.replace_all_uses_with(self._cast(stored, param.dtype))

    def _dtype(self, key: str) -> str | None:
        found = self.layout.dtypes.get(key)
        return None if found is None else dtype_name(found)

    def _cast(self, param: TensorMeta, dtype: str) -> TensorMeta:
        cast = TensorMeta(fresh(f"{param.name}_{dtype}", self.taken), param.shape, dtype)
        attrs = {"dtype": Dtype(dtype), "non_blocking": False, "copy": False, "memory_format": None}
        origin = Origin((param.key or "").rpartition(".")[0])
        self.nodes.append(OpNode(cast.name, "aten.to.dtype", [param], [cast], attrs, args=["self"], origin=origin))
        return cast

    def _source(self, key: str, shape: Sequence[Dim], dtype: str) -> TensorMeta:
        """Return a tensor of the checkpoint, cast if it has another dtype than the conversion needs."""
        if key not in self.sources:
            is_stack = INDEX in key
            stored = self._dtype(key.replace(INDEX, "0") if is_stack else key) or dtype
            name = fresh(weight_name("p", key), self.taken)
            param = Param((key,), STACK) if is_stack else Param((key,))
            self.params[key] = TensorMeta(name, shape, stored, param=param)
            self.sources[key] = self.params[key] if stored == dtype else self._cast(self.params[key], dtype)
        return self.sources[key]

    def _converted(self, conversion: Conversion) -> dict[str, TensorMeta]:
        """Append the nodes of a conversion, or a call of them; return what they compute, by key of the model."""
        body, keys = self.layout.graph(conversion)
        numbers = {param: int((param.key or "").rpartition(".")[2]) for param in body.params}
        given = {param: self._source(keys[at], param.shape, param.dtype) for param, at in numbers.items()}
        origin = Origin(conversion.first.rpartition(".")[0])
        formats = self.layout.formats(conversion)
        if not formats:
            return dict(zip(conversion.targets, self._append(body, given, origin), strict=True))
        kind = f"dequantize_{formats[0]}"
        if body not in self.shared:
            copy = body.clone()
            reads = [
                (keys[numbers[param]].rpartition(".")[2], own)
                for param, own in zip(body.params, copy.params, strict=True)
            ]
            _, function = enclose(copy, copy.nodes, reads, Origin())
            name = fresh(kind, self.functions)
            self.graph.functions[name], self.shared[body] = function, (name, function)
        name, function = self.shared[body]
        outputs = [
            tensor.copy(fresh(weight_name("w", key), self.taken))
            for key, tensor in zip(conversion.targets, function.graph_outputs, strict=True)
        ]
        args = [tensor.name for tensor in function.graph_inputs]
        inputs = [given[param] for param in body.params]
        call = OpNode(
            outputs[0].name,
            f"{FUSED}{kind}",
            inputs,
            outputs,
            {"function": FunctionRef(name)},
            args=args,
            origin=origin,
        )
        self.nodes.append(call)
        self.dequantizing.append(call)
        return dict(zip(conversion.targets, outputs, strict=True))

    def _append(self, body: IR, given: Mapping[TensorMeta, TensorMeta], origin: Origin) -> list[TensorMeta]:
        """Append copies of the nodes of a graph, and return what they compute."""
        here = dict(given)
        for node in body.nodes:
            for tensor in node.outputs:
                here[tensor] = tensor.copy(fresh(tensor.name, self.taken))
            name = here[node.outputs[0]].name if len(node.outputs) == 1 else fresh(node.name, self.taken)
            copied = node.copy(here.__getitem__, name)
            copied.origin, copied.origins = origin, (name,)
            self.nodes.append(copied)
        return [here[tensor] for tensor in body.graph_outputs]


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
    shared: dict[Hashable, str] = {}
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
    return topological_order(found)


def _called(graph: IR, reader: OpNode, before: Sequence[OpNode], shared: dict[Hashable, str]) -> OpNode:
    """Return one call of copies of these nodes and of their reader, in whose place it is.

    If the reader is itself a call, such as that of a layer, the nodes become part of its body.
    """
    group = [*before, reader]
    origin = reader.origin if reader.is_call else common_origin(group)
    structure = _structure(group, origin)
    kind = reader.op_type if reader.is_call else f"{FUSED}dequantize_{reader.op_type.split('.')[1]}"
    if structure not in shared:
        name = str(reader.attrs["function"]) if reader.is_call else kind.removeprefix(FUSED)
        shared[structure] = fresh(name, Names(graph.functions))
        graph.functions[shared[structure]] = _body(graph, group, origin)
    function = graph.functions[shared[structure]]
    call = OpNode(
        reader.name,
        kind,
        read_by(group),
        reader.outputs,
        {"function": FunctionRef(shared[structure])},
        args=[tensor.name for tensor in function.graph_inputs],
        origin=origin,
        origins=dict.fromkeys(name for node in group for name in node.origins),
    )
    reader.inputs = ()
    return call


def _body(graph: IR, group: Sequence[OpNode], origin: Origin) -> IR:
    """Return the body of a call of these nodes."""
    here: dict[TensorMeta, TensorMeta] = {}

    def moved(tensor: TensorMeta) -> TensorMeta:
        return here.get(tensor, tensor)

    copies = []
    for node in group:
        here.update((tensor, tensor.copy()) for tensor in node.outputs)
        copies.append(node.copy(moved))
    reader = group[-1]
    names = dict(zip(reader.inputs, reader.args, strict=True))
    reads = [(_argument(tensor, names), tensor) for tensor in read_by(copies)]
    returned = OpNode("return", "return", copies[-1].outputs, [])  # a reader, so that these are the results
    call, body = enclose(graph, copies, reads, origin)
    call.inputs = returned.inputs = ()
    if reader.is_call:
        moving = body.nodes[:-1]
        last = body.nodes[-1]
        inline_all(body, lambda node: node is last)
        run_with_readers(body, moving)
    return body


def _structure(group: Sequence[OpNode], origin: Origin) -> Hashable:
    """Return a key of what nodes compute, independent of names: equal for groups that can share a function."""
    numbers: dict[TensorMeta, int] = {}
    rows: list[Hashable] = []
    for node in group:
        for tensor in node.inputs:
            if tensor not in numbers:
                numbers[tensor] = len(numbers)
                rows.append((tensor.shape, tensor.dtype, tensor.stride, tensor.placement))
        attrs = repr(sorted(node.attrs.items()))
        inner = seen_from(origin, node.origin)
        rows.append((node.op_type, node.args, attrs, inner, tuple(numbers[tensor] for tensor in node.inputs)))
        for tensor in node.outputs:
            numbers[tensor] = len(numbers)
    return tuple(rows)


def _argument(tensor: TensorMeta, names: Mapping[TensorMeta, str]) -> str:
    """Return the name of an argument: as the reader calls it, or as the checkpoint does."""
    return names.get(tensor, (tensor.key or tensor.name).rpartition(".")[2]).replace(".", "_")
