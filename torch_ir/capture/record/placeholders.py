"""The placeholders of a recorded graph: their kinds, and the names that torch.export gives them."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import fx, nn
from torch.export.graph_signature import ConstantArgument, InputKind, InputSpec, TensorArgument

from torch_ir.capture.naming.constant_keys import ConstantKeys
from torch_ir.capture.naming.export_names import Names, call_name, weight_name
from torch_ir.capture.record.run_recorder import Recorder
from torch_ir.capture.walk import weights
from torch_ir.ops.tensor_data import plain_tensors
from torch_ir.ops.torch_internals import OpOverload, dense_memory_key

_DETACH, _DETACH_ = torch.ops.aten.detach.default, torch.ops.aten.detach_.default
_LITERAL = torch.ops.aten.lift_fresh_copy.default
_ORDER = (InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR, InputKind.USER_INPUT)


class Given(NamedTuple):
    """Content of a placeholder: kind, preferred name and value; for weights, the key."""

    kind: InputKind
    name: str
    value: Any
    key: str = ""
    is_persistent: bool | None = None  # for buffers: whether the state dict has them

    @property
    def is_constant(self) -> bool:
        """Whether the program must store the value."""
        return self.kind is InputKind.CONSTANT_TENSOR or self.is_persistent is False

    def spec(self, node: fx.Node) -> InputSpec:
        return InputSpec(self.kind, argument(node, self.value), self.key or None, self.is_persistent)


def held_weights(model: nn.Module) -> Iterator[Given]:
    """Yield parameters and buffers under each of their keys; of one that wraps other tensors, those."""
    for weight in weights(model):
        for key, tensor in plain_tensors({weight.key: weight.tensor}).items():
            if weight.kind == "parameter":
                yield Given(InputKind.PARAMETER, weight_name("p", key), tensor, key)
            else:
                yield Given(InputKind.BUFFER, weight_name("b", key), tensor, key, weight.kind == "buffer")


def read_constants(recorder: Recorder, unread: Collection[fx.Node]) -> Iterator[tuple[fx.Node, Given]]:
    """Yield the constants that are read; one that is written to becomes a non-persistent buffer."""
    keys = ConstantKeys(recorder.model)
    for node, (tensor, module) in recorder.untracked.constants.items():
        if node not in unread:
            key = keys.key(tensor, module)
            is_written = dense_memory_key(tensor) in recorder.written
            kind = InputKind.BUFFER if is_written else InputKind.CONSTANT_TENSOR
            yield node, Given(kind, weight_name("c", key), tensor, key, False if is_written else None)


def unread_literals(graph: fx.Graph, constants: Collection[fx.Node]) -> dict[fx.Node, None]:
    """Return unread literals and `detach` calls, which torch.export drops, readers first."""
    found: dict[fx.Node, None] = {}
    for node in reversed(graph.nodes):
        is_droppable = node in constants or node.target in (_LITERAL, _DETACH) or _is_detached_literal(node)
        if is_droppable and all(user in found for user in node.users):
            found[node] = None
    return found


def _is_detached_literal(node: fx.Node) -> bool:
    return node.target is _DETACH_ and isinstance(node.args[0], fx.Node) and node.args[0].target is _LITERAL


def name_nodes(graph: fx.Graph, given: Mapping[fx.Node, Given]) -> None:
    """Name placeholders and calls as torch.export does: inputs first; calls are renamed on a collision."""
    names = Names()
    for node, wanted in given.items():
        node.name = node.target = names.placeholder(wanted.name)
    calls = [node for node in graph.nodes if node.op == "call_function"]
    for node, name in zip(calls, names.calls(map(_wanted_name, calls)), strict=True):
        node.name = name


def _wanted_name(call: fx.Node) -> str:
    target: Any = call.target
    return call_name(target.overloadpacket.__name__ if isinstance(target, OpOverload) else target.__name__)


def order_placeholders(graph: fx.Graph, given: Mapping[fx.Node, Given]) -> list[fx.Node]:
    """Move parameters, buffers, constants and inputs, in this order, before the calls, and return them."""
    first = next(node for node in graph.nodes if node.op != "placeholder")
    ordered = sorted(given, key=lambda node: _ORDER.index(given[node].kind))
    for node in ordered:
        first.prepend(node)
    return ordered


def argument(node: Any, value: Any) -> TensorArgument | ConstantArgument:
    if isinstance(value, (torch.Tensor, fx.Node)):
        return TensorArgument(node.name)
    return ConstantArgument(node.name if isinstance(node, fx.Node) else "", value)
