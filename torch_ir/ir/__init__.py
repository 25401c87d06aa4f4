"""The graph: tensors, nodes, IR, symbolic dimensions, checking, text form, JSON. No torch here."""

from torch_ir.ir.checks.graph_check import check
from torch_ir.ir.checks.limits import Limits
from torch_ir.ir.graph.attr_types import Device, Dtype, FunctionRef, Layout, MemoryFormat
from torch_ir.ir.graph.constant_data import TensorData
from torch_ir.ir.graph.graph import IR
from torch_ir.ir.graph.io_tree import Branch, Record, Slot, Tree, leaves
from torch_ir.ir.graph.node import OpNode, Origin
from torch_ir.ir.graph.tensor import Param, TensorMeta
from torch_ir.ir.json.json_fields import Dim
from torch_ir.ir.regroup.functions import inline, outline
from torch_ir.ir.regroup.granularity import fold
from torch_ir.ir.regroup.shared_functions import share_functions
from torch_ir.ir.sizes.expressions import Expr, evaluate
from torch_ir.ir.sizes.symbols import Symbol

__all__ = [
    "IR", "Branch", "Device", "Dim", "Dtype", "Expr", "FunctionRef", "Layout", "Limits", "MemoryFormat", "OpNode",
    "Origin", "Param", "Record", "Slot", "Symbol", "TensorData", "TensorMeta", "Tree", "check", "evaluate", "fold",
    "inline", "leaves", "outline", "share_functions",
]  # fmt: skip
