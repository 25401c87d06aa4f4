"""The documented door to running graphs."""

from torch_ir.errors import ExecutionError
from torch_ir.run import IRExecutor, execute_ir

__all__ = ["ExecutionError", "IRExecutor", "execute_ir"]
