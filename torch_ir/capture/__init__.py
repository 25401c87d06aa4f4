"""Model to IR: torch.export without weights, and the conversion of what it gives."""

from torch_ir.capture.build_on_meta import meta_init
from torch_ir.capture.extract_model import export_model, extract_ir
from torch_ir.capture.program.from_fx import from_fx
from torch_ir.capture.program.node_info import NodeInfo
from torch_ir.capture.program.program_to_ir import convert_exported_program

__all__ = ["NodeInfo", "convert_exported_program", "export_model", "extract_ir", "from_fx", "meta_init"]
