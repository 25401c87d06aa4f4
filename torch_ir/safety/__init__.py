"""Validation of untrusted files: check a graph against torch's operators before using it."""

from torch_ir.safety.load import deserialize_ir, load_ir
from torch_ir.safety.validate import Report, examine, validate_ir

__all__ = ["Report", "deserialize_ir", "examine", "load_ir", "validate_ir"]
