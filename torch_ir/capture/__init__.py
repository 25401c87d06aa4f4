"""Model to IR: torch.export without weights, and the conversion of what it gives."""

from torch_ir.capture.convert import convert_exported_program
from torch_ir.capture.extract import export_model, extract_ir
from torch_ir.capture.from_fx import from_fx
from torch_ir.capture.meta_init import meta_init
from torch_ir.capture.node_info import NodeInfo

__all__ = ["NodeInfo", "convert_exported_program", "export_model", "extract_ir", "from_fx", "meta_init"]
