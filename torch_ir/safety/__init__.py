"""AN UNTRUSTED FILE. What torch knows about operators, held against a graph before anything is done with it."""

from torch_ir.safety.load import deserialize_ir, load_ir
from torch_ir.safety.validate import Report, examine, validate_ir

__all__ = ["Report", "deserialize_ir", "examine", "load_ir", "validate_ir"]
