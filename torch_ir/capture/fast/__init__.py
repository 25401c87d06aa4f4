"""The quick road: a model recorded on tensors without memory, with every operator's shape rule asked once."""

from torch_ir.capture.fast.ghosts import NotCoveredError
from torch_ir.capture.fast.record import record_fast

__all__ = ["NotCoveredError", "record_fast"]
