"""Prologue: the nodes that depend on weights alone, which are computed once when weights are bound.

Nodes that restore quantised weights are not part of it, nor is what depends on them.

torch, which knows the effects of operators, is imported only for graphs that have such nodes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType

from torch_ir.ir import IR, Expr, FunctionRef, OpNode, TensorMeta
from torch_ir.ir.graph.attr_types import values_in
from torch_ir.ir.graph.operator_sets import RESTORING


def split_prologue(ir: IR) -> tuple[list[OpNode], list[OpNode]]:
    """Return the nodes to compute once, and those for every run; the latter are all if a node writes in place."""
    if not any(is_fixed(node, ir.functions) for node in _over_weights(ir)) or _writes(ir):
        return [], list(ir.nodes)
    changing = {target for target, _ in ir.mutations}
    fixed: set[TensorMeta] = {param for param in ir.params if param not in changing}
    barred = _escaping(ir) | {symbol.tensor for symbol in ir.symbols.values() if symbol.tensor is not None}
    once: list[OpNode] = []
    every: list[OpNode] = []
    for node in ir.nodes:
        is_known = all(tensor in fixed for tensor in node.inputs) and barred.isdisjoint(node.outputs)
        has_sizes = all(tensor.is_static for tensor in node.outputs)  # symbols have values only in a run
        if is_known and has_sizes and is_fixed(node, ir.functions):
            once.append(node)
            fixed.update(node.outputs)
        else:
            every.append(node)
    return once, every


def crossing(once: Iterable[OpNode], every: Iterable[OpNode], ir: IR) -> list[TensorMeta]:
    """Return the outputs of the prologue that the rest reads."""
    read = {tensor for node in [*every, ir.returns] for tensor in node.inputs}
    return [tensor for node in once for tensor in node.outputs if tensor in read]


def _over_weights(ir: IR) -> list[OpNode]:
    """Return the nodes that read only weights: without any, no node depends on weights alone."""
    return [node for node in ir.nodes if node.outputs and all(tensor.param is not None for tensor in node.inputs)]


def is_fixed(
    node: OpNode, functions: Mapping[str, IR] = MappingProxyType({}), judged: dict[IR, bool] | None = None
) -> bool:
    """Whether a node may run once: equal inputs always produce equal outputs, and it restores no quantised values.

    A call is judged by its body, if given; `judged` holds the bodies that were judged already.
    """
    if node.op_type.startswith(RESTORING):
        return False
    from torch_ir.ops.prepare_run import has_body_alone

    body = functions.get(node.attrs["function"]) if has_body_alone(node) else None
    if any(_is_steered(value) for name, value in node.attrs.items() if body is None or name != "function"):
        return False
    if body is not None:
        judged = {} if judged is None else judged
        if body not in judged:
            judged[body] = not body.params and all(is_fixed(inner, body.functions, judged) for inner in body.nodes)
        return judged[body]
    from torch_ir.ops.effects import is_pure
    from torch_ir.ops.registry import get_execution_fn

    return is_pure(node) and get_execution_fn(node.op_type) is None


def _writes(ir: IR) -> bool:
    from torch_ir.ops.effects import writes_in_place

    return any(map(writes_in_place, ir.all_nodes()))


def _is_steered(value: object) -> bool:
    """Whether an attribute depends on the run, or references a function."""
    return any(isinstance(found, (Expr, FunctionRef)) for found in values_in(value))


def _escaping(ir: IR) -> set[TensorMeta]:
    """Return the tensors that the caller receives, directly or through a view: those are computed in every run."""
    from torch_ir.ops.prepare_run import has_body_alone

    escaping = set(ir.returns.inputs)
    lent: dict[str, set[str]] = {}  # function -> inputs that its outputs may alias
    for node in reversed(ir.nodes):
        if escaping.isdisjoint(node.outputs) or _makes_new_storage(node):
            continue
        if not has_body_alone(node):
            escaping.update(node.inputs)
            continue
        function = node.attrs["function"]
        if function not in lent:
            lent[function] = {tensor.name for tensor in _escaping(ir.functions[function])}
        given = zip(node.args, node.inputs, strict=True)
        escaping.update(tensor for name, tensor in given if name in lent[function])
    return escaping


def _makes_new_storage(node: OpNode) -> bool:
    """Whether the outputs certainly share no memory with the inputs."""
    from torch_ir.ops.effects import may_alias
    from torch_ir.ops.registry import get_execution_fn
    from torch_ir.ops.schema import find_operator
    from torch_ir.ops.torch_internals import OpOverload

    operator = find_operator(node.op_type)
    if get_execution_fn(node.op_type) is not None or not isinstance(operator, OpOverload):
        return False
    is_cast = node.op_type.startswith("aten.to.") and node.inputs and node.inputs[0].dtype != node.outputs[0].dtype
    return bool(is_cast) or not may_alias(operator)
