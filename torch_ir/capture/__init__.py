"""Model to IR: capture without weights, and conversion of exported programs and fx graphs."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from torch_ir.capture.build_on_meta import meta_init
from torch_ir.capture.extract_model import export_model, extract_ir

if TYPE_CHECKING:
    from torch_ir.capture.program.from_fx import from_fx
    from torch_ir.capture.program.node_info import NodeInfo
    from torch_ir.capture.program.program_to_ir import convert_exported_program

__all__ = ["NodeInfo", "convert_exported_program", "export_model", "extract_ir", "from_fx", "meta_init"]

# imported on first use: they import sympy, which is slow and which a fast recording does not need
_LATE = {"NodeInfo": "node_info", "convert_exported_program": "program_to_ir", "from_fx": "from_fx"}


def __getattr__(name: str) -> Any:
    if name not in _LATE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = getattr(import_module(f"{__name__}.program.{_LATE[name]}"), name)
    return found
