"""The tape: operator calls of one run as an fx graph, and which of its nodes each living tensor is."""

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
from torch_ir.ops.torch_internals import FakeTensor, FakeTensorMode, OpOverload, memory_key, pytree

Meta = Mapping[str, Any]


class Tape:
    """An fx graph that grows with the run; `stranger` gives the node of a tensor that nothing on the tape has made."""

    def __init__(self, mode: FakeTensorMode, stranger: Callable[[torch.Tensor], fx.Node]) -> None:
        self.graph = fx.Graph()
        self.mode = mode
        self.stranger = stranger
        self._nodes: Any = WeakTensorKeyDictionary()
        # the weak reference keeps the address of a storage from being used again
        self._storages: dict[int | None, tuple[StorageWeakRef, fx.Node]] = {}

    def placeholder(self, name: str, value: Any) -> fx.Node:
        """A tensor, or a plain value, that the graph is given."""
        node = self.graph.placeholder(name)
        node.meta["val"] = self.fake(value) if isinstance(value, torch.Tensor) else value
        if isinstance(value, torch.Tensor):
            self.name(value, node)
        return node

    def call(self, target: OpOverload, args: Any, kwargs: Any, result: Any, meta: Meta) -> fx.Node:
        """Write down a call whose arguments are nodes, and remember which tensors it gave."""
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
        """From now on, this tensor is what that node makes."""
        before = self._nodes.get(tensor)
        self._nodes[tensor] = node
        if tensor.layout == torch.strided:
            key = address(tensor)
            if key not in self._storages or self._storages[key][1] is before:
                kept: Any = StorageWeakRef(tensor.untyped_storage())  # type: ignore[no-untyped-call]  # torch's
                self._storages[key] = (kept, node)

    def living(self) -> list[torch.Tensor]:
        """Tensors that are results of calls, of those that are still there."""
        return [tensor for tensor, node in self._nodes.items() if node.op != "placeholder"]

    def forget(self, tensor: torch.Tensor) -> None:
        """Something that the tape has not seen has changed this tensor's memory."""
        self._storages.pop(address(tensor), None)
        for other in [other for other in self._nodes if address(other) == address(tensor)]:
            del self._nodes[other]

    def nodes_of(self, value: Any) -> Any:
        """Arguments with nodes in the place of tensors."""
        return pytree.tree_map_only(torch.Tensor, self.node_of, value)

    def known(self, tensor: torch.Tensor) -> fx.Node | None:
        """The node that made a tensor, if it is on the tape."""
        found: fx.Node | None = self._nodes.get(tensor)
        return found

    def node_of(self, tensor: torch.Tensor) -> fx.Node:
        node = self._nodes.get(tensor)
        return node if node is not None else self._alias(tensor) or self.stranger(tensor)

    def _alias(self, tensor: torch.Tensor) -> fx.Node | None:
        """Another name for memory that the tape knows, such as `x.data`; one of another shape is a view of it."""
        if tensor.layout != torch.strided or address(tensor) not in self._storages:
            return None
        known = self._storages[address(tensor)][1]
        value = known.meta["val"]
        if value.dtype != tensor.dtype:
            raise ConversionError(f"{known.name} is read as {tensor.dtype} in a way that torch does not show")
        if _layout(value) != _layout(tensor):
            layout = (list(tensor.shape), list(tensor.stride()), tensor.storage_offset())
            return self.call(torch.ops.aten.as_strided.default, (known, *layout), {}, tensor, {})
        self.name(tensor, known)
        return known

    def fake(self, tensor: torch.Tensor) -> torch.Tensor:
        """What the graph keeps of a tensor: its shape, dtype, strides, and whose memory it is."""
        if isinstance(tensor, FakeTensor):
            return tensor.detach()
        return self.mode.from_tensor(tensor.detach(), static_shapes=True)


def address(tensor: torch.Tensor) -> int | None:
    """What tells the memory of one tensor from that of another."""
    return memory_key(tensor) if tensor.layout == torch.strided else None


def _layout(tensor: torch.Tensor) -> tuple[Any, ...]:
    return tuple(tensor.shape), tuple(tensor.stride()), tensor.storage_offset()
