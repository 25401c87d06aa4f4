"""Registry of user-defined operators: conversion of captured calls to nodes, and executors of nodes.

Lookup is by exact op_type, then by the name without overload, then by any pattern with the same base name.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from torch_ir.errors import RegistryError
from torch_ir.ir import OpNode

F = TypeVar("F", bound=Callable[..., Any])

_CONVERSIONS: dict[str, Callable[..., Any]] = {}
_EXECUTORS: dict[str, Callable[..., Any]] = {}


def register_op(pattern: str) -> Callable[[F], F]:
    """Decorate `f(node_info) -> OpNode`, which converts captured calls of that operator."""
    return register_in(_CONVERSIONS, pattern, "conversion")


def register_executor(pattern: str) -> Callable[[F], F]:
    """Decorate `f(inputs, attrs) -> list of tensors`, which computes nodes of that operator."""
    return register_in(_EXECUTORS, pattern, "executor")


def get_conversion_fn(op_type: str) -> Callable[..., Any] | None:
    """Return the conversion of an operator: by full name, name without overload, or another overload."""
    return find_in(_CONVERSIONS, op_type)


def get_execution_fn(op_type: str) -> Callable[..., Any] | None:
    """Return the executor of an operator, found in the same way; None if there is none."""
    return find_in(_EXECUTORS, op_type)


def executor_of(node: OpNode) -> Callable[..., Any] | None:
    """Return the executor for a node; a layer's class has no overload, so only its full name matches."""
    has_overload = not node.is_call and not node.is_layer
    return find_in(_EXECUTORS, node.op_type) if has_overload else _EXECUTORS.get(node.op_type)


def list_registered_ops() -> dict[str, list[str]]:
    """Return the names under which conversions (`conversion`) and executors (`execution`) are registered."""
    return {"conversion": sorted(_CONVERSIONS), "execution": sorted(_EXECUTORS)}


def unregister(pattern: str) -> None:
    """Remove whatever is registered under that exact pattern."""
    _CONVERSIONS.pop(pattern, None)
    _EXECUTORS.pop(pattern, None)


def register_in(table: dict[str, Callable[..., Any]], pattern: str, kind: str) -> Callable[[F], F]:
    """Return a decorator that puts a function into a table; another function under the same name is an error."""

    def keep(function: F) -> F:
        holder = table.setdefault(pattern, function)
        if not _is_same(holder, function):
            raise RegistryError(f"the {kind} for {pattern!r} is already {holder.__module__}.{holder.__qualname__}")
        table[pattern] = function
        return function

    return keep


def _is_same(one: Callable[..., Any], other: Callable[..., Any]) -> bool:
    """Whether this is the same function, possibly imported or defined again; lambdas have no distinctive name."""
    is_named = "<lambda>" not in one.__qualname__
    return one is other or (is_named and (one.__module__, one.__qualname__) == (other.__module__, other.__qualname__))


def _base(op_type: str) -> str:
    """Return the base of an op_type: `aten.add` for `aten.add.Tensor` and `aten.add`."""
    parts = op_type.split(".")
    return ".".join(parts[:2]) if len(parts) > 2 else op_type


def find_in(table: dict[str, Callable[..., Any]], op_type: str) -> Callable[..., Any] | None:
    """Return the function for an operator: by full name, name without overload, or another overload."""
    if not table:
        return None
    base = _base(op_type)
    if op_type in table or base in table:
        return table.get(op_type) or table[base]
    return next((function for pattern, function in table.items() if _base(pattern) == base), None)
