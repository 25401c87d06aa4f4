"""LoRA adapters in a graph: merged into the weights by nodes that run once, or as inputs that each row chooses."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import count
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from torch_ir.capture.naming.export_names import weight_name
from torch_ir.errors import WeightLoadError
from torch_ir.ir import IR, Branch, Dtype, OpNode, Origin, Param, Slot, TensorMeta
from torch_ir.ir.graph.free_names import Names, fresh, taken_names
from torch_ir.ir.graph.io_tree import with_keywords
from torch_ir.ir.regroup.functions import further_entries
from torch_ir.llm.peft_adapter import AdaptedModule, Adapter, read_adapter, require_modules
from torch_ir.ops.schema import name_arguments
from torch_ir.ops.torch_types import dtype_name
from torch_ir.run.weight_files import load_weights

_WEIGHT = {"aten.linear.default": "weight", "aten.embedding.default": "weight", "aten.addmm.default": "mat2"}
_LINEAR = "aten.linear.default"
_LORA, _ROW = "lora", "adapter"  # the further arguments of a graph with adapters as inputs


def merge_lora(ir: IR, adapter: str | os.PathLike[str]) -> IR:
    """Return a copy of a graph whose weights are those of a LoRA adapter of PEFT: `W + scale * B @ A`, or DoRA.

    `adapter` is the folder that PEFT writes; only headers are read. The sums are nodes over weights, so they run once,
    when weights are bound. The factors have the keys of the adapter's file: bind the weights of the model and those of
    `load_weights(folder / "adapter_model.safetensors")` together.
    """
    read = read_adapter(adapter)
    ir, found = _with_names(ir), set[str]()
    for graph in (ir, *further_entries(ir).values()):
        found |= _Merging(graph, read).run()
    require_modules(read, found, _modules(ir))
    return ir.check()


def lora_as_inputs(ir: IR, adapters: Sequence[str | os.PathLike[str]]) -> IR:
    """Return a copy of a graph with LoRA adapters as inputs: each row of the batch chooses one.

    The inputs are `lora`, a dict that `lora_inputs` returns for the same adapters, and `adapter`, int64[batch]: 0 for
    the model without an adapter, 1 for the first adapter, and so on. The ranks may differ.
    """
    read = [read_adapter(each) for each in adapters]
    ir, found = _with_names(ir), set[str]()
    for graph in (ir, *further_entries(ir).values()):
        found |= _add_inputs(graph, read)
    for each in read:
        require_modules(each, found, _modules(ir))
    return ir.check()


def lora_inputs(adapters: Sequence[str | os.PathLike[str]], dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
    """Return the `lora` input of a graph of `lora_as_inputs`, read from the files of these adapters."""
    read = [read_adapter(each) for each in adapters]
    loaded = [load_weights(each.file) for each in read]
    modules = [{module.module: module for module in each.modules} for each in read]
    found: dict[str, Tensor] = {}
    for name, rank, down, up in _stacks(read):
        first = torch.zeros(len(read) + 1, down, rank, dtype=dtype)
        second = torch.zeros(len(read) + 1, rank, up, dtype=dtype)
        for at, (by_name, tensors) in enumerate(zip(modules, loaded, strict=True), start=1):
            if (module := by_name.get(name)) is not None:
                first[at, :, : module.rank] = tensors[module.down].T
                second[at, : module.rank] = tensors[module.up].T * module.scale
        found |= {f"{name}.A": first, f"{name}.B": second}
    return found


def _with_names(ir: IR) -> IR:
    """Return a copy whose nodes have their arguments by name."""
    copy = ir.clone()
    for node in copy.all_nodes():
        name_arguments(node)
    return copy


class _Merging:
    """Merge an adapter into one graph."""

    def __init__(self, graph: IR, adapter: Adapter) -> None:
        self.graph, self.adapter = graph, adapter
        self.taken = taken_names(graph)
        self.nodes: list[OpNode] = []
        self.params: list[TensorMeta] = []

    def run(self) -> set[str]:
        """Replace the weights of the adapted modules; return the modules that are in this graph."""
        readers = _readers(self.graph)
        found = set()
        for module in self.adapter.modules:
            merged: dict[TensorMeta, TensorMeta] = {}
            for node in readers.get(module.module, ()):
                weight = node[_WEIGHT[node.op_type]]
                if weight not in merged:
                    merged[weight] = self._merged(module, weight)
                node.replace_input(weight, merged[weight])
                found.add(module.module)
        self.graph.params = [*self.graph.params, *self.params]
        self.graph.nodes = [*self.nodes, *self.graph.nodes]
        return found

    def _merged(self, module: AdaptedModule, weight: TensorMeta) -> TensorMeta:
        """Append the nodes that add the update to a weight, or to one that replaces it."""
        if module.whole is not None:
            weight = self._same(module, weight, self._param(module.whole))
        if not module.down:
            return weight
        down, up = self._param(module.down), self._param(module.up)
        rows, columns = up.shape[0], down.shape[1]
        made = partial(self._made, Origin(module.module))
        update = made("aten.mm.default", (rows, columns), down.dtype, {"self": up, "mat2": down})
        update = made("aten.mul.Tensor", update.shape, update.dtype, {"self": update}, {"other": module.scale})
        if module.is_embedding or self.adapter.is_transposed:
            update = made("aten.transpose.int", (columns, rows), update.dtype, {"self": update}, {"dim0": 0, "dim1": 1})
            update.stride = (1, columns)
        self._same(module, weight, update)
        if update.dtype != weight.dtype:
            stride, dtype = update.stride, Dtype(weight.dtype)
            cast = {"dtype": dtype, "non_blocking": False, "copy": False, "memory_format": None}
            update = made("aten.to.dtype", update.shape, weight.dtype, {"self": update}, cast)
            update.stride = stride
        total = made("aten.add.Tensor", weight.shape, weight.dtype, {"self": weight, "other": update}, {"alpha": 1})
        if module.norm is None:
            return total
        # DoRA: each row of the sum is scaled to a stored length
        norm, shape = self._param(module.norm), (total.shape[0], 1)
        options = {"ord": 2, "dim": [1], "keepdim": True, "dtype": None}
        length = made("aten.linalg_vector_norm.default", shape, total.dtype, {"self": total}, options)
        column = made("aten.unsqueeze.default", shape, norm.dtype, {"self": norm}, {"dim": 1})
        factor = made("aten.div.Tensor", shape, total.dtype, {"self": column, "other": length})
        return made("aten.mul.Tensor", total.shape, total.dtype, {"self": factor, "other": total})

    def _same(self, module: AdaptedModule, weight: TensorMeta, other: TensorMeta) -> TensorMeta:
        if other.shape != weight.shape:
            shapes = f"has the shape {list(weight.shape)}, but its adapter {list(other.shape)}"
            raise WeightLoadError(f"the weight of {module.module!r:.120} {shapes}")
        return other

    def _param(self, key: str) -> TensorMeta:
        stored = self.adapter.tensors[key]
        name = fresh(weight_name("p", key), self.taken)
        tensor = TensorMeta(name, tuple(stored.shape), dtype_name(stored.dtype), param=Param((key,)))
        self.params.append(tensor)
        return tensor

    def _made(
        self,
        origin: Origin,
        op_type: str,
        shape: Sequence[Any],
        dtype: str,
        inputs: Mapping[str, TensorMeta],
        attrs: Mapping[str, Any] = MappingProxyType({}),
    ) -> TensorMeta:
        """Append a node; return its result."""
        node = _node(origin, self.taken, op_type, shape, dtype, inputs, attrs)
        self.nodes.append(node)
        return node.output


def _node(
    origin: Origin,
    taken: Names,
    op_type: str,
    shape: Sequence[Any],
    dtype: str,
    inputs: Mapping[str, TensorMeta],
    attrs: Mapping[str, Any],
) -> OpNode:
    made = TensorMeta(fresh("lora", taken), shape, dtype)
    return OpNode(made.name, op_type, list(inputs.values()), [made], attrs, args=list(inputs), origin=origin)


def _add_inputs(graph: IR, adapters: Sequence[Adapter]) -> set[str]:
    """Add the update of a chosen adapter to each adapted linear layer; return the modules that are in this graph."""
    taken = taken_names(graph)
    readers = _readers(graph)
    batch = graph.graph_inputs[0].shape[0]
    row = TensorMeta(fresh(_ROW, taken), (batch,), "int64")
    given: dict[str, TensorMeta] = {}
    after: dict[OpNode, list[OpNode]] = {}
    found = set()
    for name, rank, down, up in _stacks(adapters):
        for node in readers.get(name, ()):
            x, y = node.inputs[0], node.output
            if node.op_type != _LINEAR or len(x.shape) != 3 or x.shape[0] != batch:
                raise WeightLoadError(
                    f"{name!r:.120} is not a linear layer over rows of the batch; merge_lora takes such adapters"
                )
            sizes = {"A": (len(adapters) + 1, down, rank), "B": (len(adapters) + 1, rank, up)}
            for part, shape in sizes.items():
                key = f"{name}.{part}"
                if key not in given:
                    given[key] = TensorMeta(fresh(f"lora_{key.replace('.', '_')}", taken), shape, x.dtype)
            after[node] = list(_chosen_update(node, given[f"{name}.A"], given[f"{name}.B"], row, taken))
            total = after[node][-1].output
            for reader in tuple(y.consumers):
                if reader not in after[node]:
                    reader.replace_input(y, total)
            found.add(name)
    if not found:
        return found
    graph.nodes = [each for node in graph.nodes for each in (node, *after.get(node, ()))]
    _append_inputs(graph, given, row)
    return found


def _chosen_update(
    node: OpNode, first: TensorMeta, second: TensorMeta, row: TensorMeta, taken: Names
) -> Iterator[OpNode]:
    """Yield the nodes `y + (x @ A[row]) @ B[row]` for one linear layer."""
    x, y = node.inputs[0], node.output
    made = partial(_node, node.origin, taken)
    chosen = []
    for stack in (first, second):
        shape = (row.shape[0], *stack.shape[1:])
        pick = made("aten.index_select.default", shape, x.dtype, {"self": stack, "index": row}, {"dim": 0})
        yield pick
        chosen.append(pick.output)
    inner_shape = (*x.shape[:2], first.shape[2])
    inner = made("aten.matmul.default", inner_shape, x.dtype, {"self": x, "other": chosen[0]}, {})
    yield inner
    outer = made("aten.matmul.default", y.shape, x.dtype, {"self": inner.output, "other": chosen[1]}, {})
    yield outer
    yield made("aten.add.Tensor", y.shape, x.dtype, {"self": y, "other": outer.output}, {"alpha": 1})


def _append_inputs(graph: IR, given: Mapping[str, TensorMeta], row: TensorMeta) -> None:
    slots = count(len(graph.graph_inputs))
    stacks = Branch("dict", tuple(Slot(next(slots)) for _ in given), tuple(given))
    graph.graph_inputs += [*given.values(), row]
    graph.input_tree = with_keywords(graph.input_tree, {_LORA: stacks, _ROW: Slot(next(slots))})


def _stacks(adapters: Sequence[Adapter]) -> Iterator[tuple[str, int, int, int]]:
    """Yield each adapted module with the largest rank, and its numbers of inputs and outputs."""
    sizes: dict[str, tuple[int, int, int]] = {}
    for adapter in adapters:
        for module in adapter.modules:
            if not module.is_plain or adapter.is_transposed:
                raise WeightLoadError(
                    f"{adapter.path}: {module.module!r:.120} is an embedding, stored transposed, a whole weight or "
                    f"DoRA; merge_lora takes these"
                )
            down, up = adapter.tensors[module.down].shape[1], adapter.tensors[module.up].shape[0]
            rank, *before = sizes.get(module.module, (0, down, up))
            if before != [down, up]:
                raise WeightLoadError(f"the adapters of {module.module!r:.120} have different shapes")
            sizes[module.module] = (max(rank, module.rank), down, up)
    for name, (rank, down, up) in sizes.items():
        yield name, rank, down, up


def _readers(graph: IR) -> dict[str, list[OpNode]]:
    """Return the nodes that apply the weights of linear layers and embeddings, by module."""
    found: dict[str, list[OpNode]] = {}
    for node in graph.nodes:
        if node.op_type in _WEIGHT:
            found.setdefault(node.origin.module, []).append(node)
    return found


def _modules(ir: IR) -> set[str]:
    return {name for graph in (ir, *further_entries(ir).values()) for name in _readers(graph)}
