"""Effects of operators: writes, random numbers, and access outside the graph."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

import torch

from torch_ir.ir import OpNode
from torch_ir.ir.graph.operator_sets import DROPOUTS
from torch_ir.ops.forbidden import COLLECTIVES, reaches
from torch_ir.ops.schema import find_operator
from torch_ir.ops.torch_internals import OpOverload, schema_of

# Operators that update running statistics in training, which their schemas do not say -> the training flag.
RUNNING_STATISTICS = ("running_mean", "running_var")
_STATISTICS = {
    "aten.batch_norm.default": "training",
    "aten.instance_norm.default": "use_input_stats",
    "aten._batch_norm_impl_index.default": "training",
    "aten.native_batch_norm.default": "training",
}
# Their values are uninitialised memory.
_UNINITIALISED = frozenset(
    f"aten.{name}"
    for name in ("empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided")
)

# May return their input itself, which their schemas do not say.
_PASSING_ON = frozenset(
    f"aten.{name}.default"
    for name in ("atleast_1d", "atleast_2d", "atleast_3d", "conj_physical", "to_dense", "type_as")
)


def is_forbidden(op_type: str) -> bool:
    """Whether no graph may run this operator."""
    return bool(reaches(op_type))


def is_collective(op_type: str) -> bool:
    """Whether this is a collective of a mesh, or waits for one."""
    return op_type in COLLECTIVES


@cache
def mutated_arguments(operator: OpOverload) -> tuple[str, ...]:
    """Return the arguments that an operator writes to, according to its schema."""
    return tuple(
        argument.name
        for argument in schema_of(operator).arguments
        if argument.alias_info is not None and argument.alias_info.is_write
    )


def updates_statistics(operator: OpOverload, bound: Mapping[str, Any]) -> bool:
    """Whether a call with these arguments updates running statistics, which its schema does not say."""
    flag = _STATISTICS.get(str(operator))
    return flag is not None and bool(bound.get(flag)) and bound.get("running_mean") is not None


def written_arguments(operator: OpOverload, bound: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the arguments that a call with these arguments writes to, running statistics included."""
    return mutated_arguments(operator) or (RUNNING_STATISTICS if updates_statistics(operator, bound) else ())


def gives_new_values(node: OpNode) -> bool:
    """Whether an operator that writes is called functionally: the values it would write are its last outputs."""
    operator = find_operator(node.op_type)
    if not isinstance(operator, OpOverload) or not schema_of(operator).is_mutable:
        return False
    return len(node.outputs) > len(schema_of(operator).returns)


def writes_in_place(node: OpNode) -> bool:
    """Whether the node writes to one of its inputs, as in files that are not functional."""
    operator = find_operator(node.op_type)
    if not isinstance(operator, OpOverload) or not _may_write(operator) or gives_new_values(node):
        return False
    bound = {**dict(zip(node.args, node.inputs, strict=True)), **node.attrs}
    return schema_of(operator).is_mutable or updates_statistics(operator, bound)


@cache
def _may_write(operator: OpOverload) -> bool:
    return schema_of(operator).is_mutable or str(operator) in _STATISTICS


def is_opaque(node: OpNode) -> bool:
    """Whether a node is a placeholder for code outside torch, which runs only with a registered executor."""
    return node.op_type.startswith("opaque.")


def is_random(node: OpNode) -> bool:
    """Whether two runs may differ because of random numbers."""
    operator = find_operator(node.op_type)
    if not isinstance(operator, OpOverload) or not may_draw(operator) or gives_its_input(node.op_type, node.attrs):
        return False
    # dropout etc. draw nothing in inference
    return (
        not any(node.attrs.get(flag) is False for flag in ("train", "training")) and node.attrs.get("dropout_p") != 0.0
    )


@cache
def may_draw(operator: OpOverload) -> bool:
    """Whether an operator draws random numbers by default."""
    return torch.Tag.nondeterministic_seeded in operator.tags


def is_uninitialised(node: OpNode) -> bool:
    """Whether a node's outputs are uninitialised memory."""
    return node.op_type.rpartition(".")[0] in _UNINITIALISED


def is_pure(node: OpNode) -> bool:
    """Whether an unused node can be removed: it has outputs, writes nothing, and draws no random numbers."""
    operator = find_operator(node.op_type)
    if not isinstance(operator, OpOverload):
        return False
    return bool(node.outputs) and not writes_in_place(node) and not is_random(node)


def changes_elements(operator: OpOverload) -> bool:
    """Whether an in-place call changes elements: `detach_` does not."""
    return operator is not torch.ops.aten.detach_.default


def gives_its_input(op_type: str, attrs: Mapping[str, Any]) -> bool:
    """Whether a call returns its input itself, which its schema does not say: dropout that is off."""
    return op_type in DROPOUTS and (attrs.get("train") is False or attrs.get("p") == 0.0)


def may_pass_on(operator: OpOverload) -> bool:
    """Whether an operator may return its input itself, which its schema does not say."""
    return str(operator) in _PASSING_ON


@cache
def may_alias(operator: OpOverload) -> bool:
    """Whether an output may share memory with an input."""
    says_so = any(result.alias_info is not None for result in schema_of(operator).returns)
    return says_so or torch.Tag.maybe_aliasing_or_mutating in operator.tags or may_pass_on(operator)
