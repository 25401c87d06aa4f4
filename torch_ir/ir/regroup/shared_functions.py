"""Deduplicate functions by structure: 32 equal layers need only one body."""

from __future__ import annotations

from collections.abc import Hashable
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from torch_ir.ir.graph.attr_types import FunctionRef
from torch_ir.ir.graph.free_names import Names, fresh
from torch_ir.ir.graph.node import OpNode
from torch_ir.ir.graph.tensor import Param, TensorMeta
from torch_ir.ir.regroup.functions import calls_by_function

if TYPE_CHECKING:
    from torch_ir.ir.graph.graph import IR


def share_functions(ir: IR) -> int:
    """Merge equal functions of nodes with the same op_type; return the number of functions removed."""
    before = len(ir.functions)
    calls = calls_by_function(ir)
    bodies = {name: ir.functions.pop(name) for name in calls}
    shared = SharedFunctions(ir)
    for name, body in bodies.items():
        for call in calls[name]:
            shared.bind(call, body, name)
    return before - len(ir.functions)


class SharedFunctions:
    """The functions added to a graph, one per body structure and op_type of the calls."""

    def __init__(self, ir: IR) -> None:
        self._ir = ir
        self._names = Names(ir.functions)
        self._first: dict[Hashable, str] = {}
        self._structures: dict[IR, bytes] = {}

    def bind(self, call: OpNode, body: IR, name: str) -> None:
        """Bind a call to this body: as a new function of roughly that name, or an equal existing one."""
        if body not in self._structures:
            self._structures[body] = structure(body)
        kind = (call.op_type, self._structures[body])
        if kind not in self._first:
            self._first[kind] = fresh(name, self._names)
            self._ir.functions[self._first[kind]] = body
        call.attrs["function"] = FunctionRef(self._first[kind])
        given = dict(zip(call.args, call.inputs, strict=True))
        inputs = [given[tensor.name] for tensor in body.graph_inputs]
        call.set_inputs(inputs, [tensor.name for tensor in self._ir.functions[self._first[kind]].graph_inputs])


def structure(ir: IR) -> bytes:
    """Return a key of what a body computes, independent of names: equal for interchangeable bodies.

    Nodes must also have the same modules relative to the call, so that their origins can be restored. The key is a
    digest, because keys that contain those of called functions would grow exponentially with the depth of calls.
    """
    numbers = {tensor: number for number, tensor in enumerate(ir.tensors())}
    functions = {name: structure(body) for name, body in ir.functions.items()}
    facts = (
        tuple(_facts(tensor) for tensor in numbers),
        tuple((_computation(node, functions), tuple(numbers[tensor] for tensor in node.inputs)) for node in ir.nodes),
        tuple(numbers[tensor] for tensor in ir.returns.inputs),
        tuple(numbers[target] for target, _ in ir.mutations),
        tuple((symbol.range, symbol.tensor and numbers[symbol.tensor], symbol.dim) for symbol in ir.symbols.values()),
        tuple(ir.constraints),
        ir.output_tree,
        ir.device,
        ir.mesh,
    )
    return sha256(repr(facts).encode()).digest()


def _facts(tensor: TensorMeta) -> Hashable:
    return (tensor.shape, tensor.dtype, tensor.stride, tensor.placement, tensor.param and _weight(tensor.param))


def _weight(param: Param) -> Hashable:
    """Return what two weights of bodies must have in common: also their values, if the graph contains them."""
    return (param.keys, param.kind, param.data and (param.data.dtype, sha256(param.data.raw).digest()))


def _computation(node: OpNode, functions: dict[str, bytes]) -> Hashable:
    """Return a key of a node without the tensors that it reads."""
    attrs = tuple((name, _value(value, functions)) for name, value in sorted(node.attrs.items()))
    return (node.op_type, node.args, attrs, len(node.outputs), node.origin.module, len(node.origins))


def _value(value: Any, functions: dict[str, bytes]) -> Hashable:
    """Return an attribute as text, which distinguishes 1, 1.0 and True; a function by its structure."""
    if isinstance(value, FunctionRef):
        return functions[value]
    if isinstance(value, (list, tuple)):
        return tuple(_value(item, functions) for item in value)
    if isinstance(value, dict):
        return tuple((key, _value(item, functions)) for key, item in value.items())
    return repr(value)
