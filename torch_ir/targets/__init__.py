"""Lowering to other formats: user-defined targets, torch, ONNX, MLIR, StableHLO, Python; and coverage reports."""

from torch_ir.targets.build_torch import to_torch
from torch_ir.targets.contract import Contract
from torch_ir.targets.coverage_report import CoverageReport
from torch_ir.targets.dynamic_shapes import dynamic_shapes_of
from torch_ir.targets.handlers import Declined
from torch_ir.targets.lowered import Layer, Lowered, Missing, Placeholder
from torch_ir.targets.node_summary import describe
from torch_ir.targets.target import Target
from torch_ir.targets.target_coverage import coverage
from torch_ir.targets.write_mlir import to_mlir
from torch_ir.targets.write_onnx import bind_onnx, to_onnx
from torch_ir.targets.write_python import to_python
from torch_ir.targets.write_stablehlo import to_stablehlo

__all__ = [
    "Contract", "CoverageReport", "Declined", "Layer", "Lowered", "Missing", "Placeholder", "Target", "bind_onnx",
    "coverage", "describe", "dynamic_shapes_of", "to_mlir", "to_onnx", "to_python", "to_stablehlo", "to_torch",
]  # fmt: skip
