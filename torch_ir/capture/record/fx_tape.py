"""The operator calls of one run as an fx graph, and the node of each live tensor."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import fx
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils.weak import WeakTensorKeyDictionary

from torch_ir.capture.naming.export_names import call_name
from torch_ir.errors import ConversionError
from torch_ir.ops.torch_internals import FakeTensor, FakeTensorMode, OpOverload, dense_memory_key, pytree

Meta = Mapping[str, Any]


class Tape:
    """An fx graph that grows with the run; `untracked` returns the node of a tensor that no recorded call made."""

    def __init__(self, mode: FakeTensorMode, untracked: Callable[[torch.Tensor], fx.Node]) -> None:
        self.graph = fx.Graph()
        self.mode = mode
        self.untracked = untracked
        self._nodes: Any = WeakTensorKeyDictionary()
        # the weak reference prevents the address of a storage from being reused
        self._storages: dict[int | None, tuple[StorageWeakRef, fx.Node]] = {}

    def placeholder(self, name: str, value: Any) -> fx.Node:
        """Add an input of the graph: a tensor or a plain value."""
        node = self.graph.placeholder(name)
        node.meta["val"] = self.fake(value) if isinstance(value, torch.Tensor) else value
        if isinstance(value, torch.Tensor):
            self.name(value, node)
        return node

    def call(self, target: OpOverload, args: Any, kwargs: Any, result: Any, meta: Meta) -> fx.Node:
        """Record a call whose arguments are nodes, and the tensors that it returned."""
        node = self.graph.create_node("call_function", target, args, kwargs, call_name(target.overloadpacket.__name__))
        node.meta.update(meta)
        node.meta["val"] = pytree.tree_map_only(torch.Tensor, self.fake, result)
        self._name_results(node, result)
        return node

    def _name_results(self, node: fx.Node, result: Any) -> None:
        if isinstance(result, torch.Tensor):
            self.name(result, node)
        elif isinstance(result, (list, tuple)):
            for index, item in enumerate(result):
                if item is not None:
                    picked = self.graph.call_function(operator.getitem, (node, index))
                    picked.meta.update(node.meta)
                    picked.meta["val"] = node.meta["val"][index]
                    self._name_results(picked, item)

    def name(self, tensor: torch.Tensor, node: fx.Node) -> None:
        """Record that a tensor is the result of a node."""
        before = self._nodes.get(tensor)
        self._nodes[tensor] = node
        if tensor.layout == torch.strided:
            key = dense_memory_key(tensor)
            if key not in self._storages or self._storages[key][1] is before:
                kept: Any = StorageWeakRef(tensor.untyped_storage())  # type: ignore[no-untyped-call]  # torch's
                self._storages[key] = (kept, node)

    def living(self) -> list[torch.Tensor]:
        """Return the live tensors that are results of calls."""
        return [tensor for tensor, node in self._nodes.items() if node.op != "placeholder"]

    def forget(self, tensor: torch.Tensor) -> None:
        """Drop what is known about a tensor's memory, after a write that was not recorded."""
        self._storages.pop(dense_memory_key(tensor), None)
        for other in [other for other in self._nodes if dense_memory_key(other) == dense_memory_key(tensor)]:
            del self._nodes[other]

    def nodes_of(self, value: Any) -> Any:
        """Replace tensors by their nodes."""
        return pytree.tree_map_only(torch.Tensor, self.node_of, value)

    def known(self, tensor: torch.Tensor) -> fx.Node | None:
        """Return the node of a tensor; None if it is not recorded."""
        found: fx.Node | None = self._nodes.get(tensor)
        return found

    def node_of(self, tensor: torch.Tensor) -> fx.Node:
        node = self._nodes.get(tensor)
        return node if node is not None else self._alias(tensor) or self.untracked(tensor)

    def _alias(self, tensor: torch.Tensor) -> fx.Node | None:
        """Return a node for a tensor on recorded memory, such as `x.data`; another layout becomes a view."""
        if tensor.layout != torch.strided or dense_memory_key(tensor) not in self._storages:
            return None
        known = self._storages[dense_memory_key(tensor)][1]
        value = known.meta["val"]
        if value.dtype != tensor.dtype:
            raise ConversionError(f"{known.name} is read as {tensor.dtype} without an operator that the recording sees")
        if _layout(value) != _layout(tensor):
            layout = (list(tensor.shape), list(tensor.stride()), tensor.storage_offset())
            return self.call(torch.ops.aten.as_strided.default, (known, *layout), {}, tensor, {})
        self.name(tensor, known)
        return known

    def fake(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return a fake tensor with the metadata and the aliasing of a tensor."""
        if isinstance(tensor, FakeTensor):
            return tensor.detach()
        return self.mode.from_tensor(tensor.detach(), static_shapes=True)


def _layout(tensor: torch.Tensor) -> tuple[Any, ...]:
    return tuple(tensor.shape), tuple(tensor.stride()), tensor.storage_offset()
