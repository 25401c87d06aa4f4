"""Which nodes depend on weights alone, so that they are computed once when weights are bound."""

from __future__ import annotations

from torch._ops import OpOverload

from torch_ir.ir import IR, Expr, FunctionRef, OpNode, TensorMeta
from torch_ir.ops.facts import is_pure, may_alias
from torch_ir.ops.registry import get_execution_fn
from torch_ir.ops.schema import find_operator


def split_prologue(ir: IR) -> tuple[list[OpNode], list[OpNode]]:
    """The nodes to compute once, and the nodes to compute in every run."""
    changing = {target for target, _ in ir.mutations}
    fixed: set[TensorMeta] = {param for param in ir.params if param not in changing}
    barred = _escaping(ir) | {symbol.tensor for symbol in ir.symbols.values() if symbol.tensor is not None}
    once: list[OpNode] = []
    every: list[OpNode] = []
    for node in ir.nodes:
        if all(tensor in fixed for tensor in node.inputs) and _is_fixed(node) and not barred.intersection(node.outputs):
            once.append(node)
            fixed.update(node.outputs)
        else:
            every.append(node)
    return once, every


def _is_fixed(node: OpNode) -> bool:
    """Whether the same inputs always give the same outputs."""
    steered = any(isinstance(value, (Expr, FunctionRef)) for value in _values(list(node.attrs.values())))
    return is_pure(node) and not steered and get_execution_fn(node.op_type) is None


def _values(value: object) -> list[object]:
    return [leaf for item in value for leaf in _values(item)] if isinstance(value, (list, tuple)) else [value]


def _escaping(ir: IR) -> set[TensorMeta]:
    """Tensors that the caller gets to hold, themselves or through a view: those are made anew in every run."""
    escaping = set(ir.returns.inputs)
    for node in reversed(ir.nodes):
        if escaping.intersection(node.outputs) and not _makes_anew(node):
            escaping.update(node.inputs)
    return escaping


def _makes_anew(node: OpNode) -> bool:
    """Whether the outputs are sure to share no memory with the inputs."""
    operator = find_operator(node.op_type)
    return get_execution_fn(node.op_type) is None and isinstance(operator, OpOverload) and not may_alias(operator)
