"""Operators: schemas, effects, and the registry of user-defined operators."""

from torch_ir.ops.effects import is_forbidden, is_pure, is_random
from torch_ir.ops.known_names import objection
from torch_ir.ops.registry import (
    get_conversion_fn,
    get_execution_fn,
    list_registered_ops,
    register_executor,
    register_op,
)
from torch_ir.ops.schema import Argument, arguments, find_operator
from torch_ir.ops.tensor_data import to_tensor

__all__ = [
    "Argument", "arguments", "find_operator", "get_conversion_fn", "get_execution_fn", "is_forbidden", "is_pure",
    "is_random", "list_registered_ops", "objection", "register_executor", "register_op", "to_tensor",
]  # fmt: skip
