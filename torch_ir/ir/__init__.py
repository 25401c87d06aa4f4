"""The graph: tensors, nodes, IR, symbolic dimensions, checking, text form, JSON. No torch here."""

from torch_ir.ir.check import check
from torch_ir.ir.data import TensorData
from torch_ir.ir.expressions import Expr, evaluate
from torch_ir.ir.graph import IR
from torch_ir.ir.limits import Limits
from torch_ir.ir.node import OpNode, Origin
from torch_ir.ir.records import Dim
from torch_ir.ir.structure import Branch, Record, Slot
from torch_ir.ir.symbols import Symbol
from torch_ir.ir.tensor import Param, TensorMeta
from torch_ir.ir.values import Device, Dtype, FunctionRef, Layout, MemoryFormat

__all__ = [
    "IR", "Branch", "Device", "Dim", "Dtype", "Expr", "FunctionRef", "Layout", "Limits", "MemoryFormat", "OpNode",
    "Origin", "Param", "Record", "Slot", "Symbol", "TensorData", "TensorMeta", "check", "evaluate",
]  # fmt: skip
