"""The documented door to exporting a model with torch.export."""

from torch_ir.capture import export_model
from torch_ir.errors import ExportError

__all__ = ["ExportError", "export_model"]
