"""The documented door to writing graphs as JSON, and to reading and checking them."""

from torch_ir.errors import SerializationError
from torch_ir.ir.files.save import save_ir, serialize_ir
from torch_ir.safety import deserialize_ir, load_ir, validate_ir

__all__ = ["SerializationError", "deserialize_ir", "load_ir", "save_ir", "serialize_ir", "validate_ir"]
