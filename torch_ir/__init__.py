"""torch_ir: a PyTorch model in, a small, exact, readable IR out, and no weight ever loaded.

    ir = torch_ir.extract_ir(model, (torch.randn(1, 4, device="meta"),))
    ir.save("model.json")

Names are resolved when first used, so that reading and drawing a graph does not import torch.
"""

from __future__ import annotations

import importlib
import sys
import warnings
from typing import TYPE_CHECKING, Any

from torch_ir._version import __version__

if TYPE_CHECKING:
    from torch_ir.analysis import Cost, Diff, cost, cost_report, diff, liveness, register_cost, subgraph
    from torch_ir.backends import Compiled, compile, list_backends, register_backend
    from torch_ir.capture import NodeInfo, convert_exported_program, export_model, extract_ir, from_fx, meta_init
    from torch_ir.draw import generate_op_distribution_pie, ir_to_mermaid, render, render_pair, to_model_explorer
    from torch_ir.errors import (
        BackendWarning,
        CaptureWarning,
        ConversionError,
        ExecutionError,
        ExportError,
        GraphError,
        GuardError,
        PipelineError,
        PlanError,
        QuantizationError,
        SerializationError,
        ShardError,
        TorchIRError,
        VersionWarning,
        WeightLoadError,
        WeightWarning,
    )
    from torch_ir.explorer import explore
    from torch_ir.formats import from_protobuf, load_protobuf, save_protobuf, to_protobuf
    from torch_ir.golden import Comparison, compare_golden, write_golden
    from torch_ir.ir import IR, Limits, OpNode, Symbol, TensorMeta
    from torch_ir.ir.files.save import save_ir, serialize_ir
    from torch_ir.ops import get_conversion_fn, get_execution_fn, list_registered_ops, register_executor, register_op
    from torch_ir.passes import apply_rules, list_passes, named_pass, optimize, rule_pass, to_opset
    from torch_ir.pipeline import (
        PipelineReport,
        StageRank,
        is_pipeline,
        pipeline_report,
        run_pipeline,
        sends_of,
        split,
        stage_of,
        train_pipeline,
        training_report,
        verify_pipeline,
    )
    from torch_ir.planning import Cluster, ParallelPlan, PlanReport, find_plan, load_plan
    from torch_ir.quantization import (
        ChosenRecipe,
        QuantizationReport,
        Recipe,
        Scheme,
        Sensitivity,
        choose_recipe,
        movement,
        observe_ranges,
        quantize,
        sensitivity,
    )
    from torch_ir.rewrite import Builder, Pattern, Rule, op, rule
    from torch_ir.run import (
        IRExecutor,
        execute_ir,
        load_weights,
        load_weights_pt,
        load_weights_safetensors,
        open_weights,
        random_weights,
    )
    from torch_ir.safety import deserialize_ir, load_ir, validate_ir
    from torch_ir.sharding import LocalRanks, run_sharded, shard, transformers_plan, verify_sharded
    from torch_ir.targets import (
        Contract,
        CoverageReport,
        Declined,
        Layer,
        Lowered,
        Placeholder,
        Target,
        bind_onnx,
        coverage,
        describe,
        dynamic_shapes_of,
        to_mlir,
        to_onnx,
        to_python,
        to_stablehlo,
        to_torch,
    )
    from torch_ir.training import RecomputeReport, extract_training, optimizer_state, recompute
    from torch_ir.verify import (
        BlockReport,
        Divergence,
        VerificationReport,
        verify_blocks,
        verify_ir,
        verify_ir_with_state_dict,
    )

_ROOMS = {
    "analysis": ("Cost", "Diff", "cost", "cost_report", "diff", "liveness", "register_cost", "subgraph"),
    "backends": ("Compiled", "compile", "list_backends", "register_backend"),
    "capture": ("NodeInfo", "convert_exported_program", "export_model", "extract_ir", "from_fx", "meta_init"),
    "draw": ("generate_op_distribution_pie", "ir_to_mermaid", "render", "render_pair", "to_model_explorer"),
    "errors": (
        "BackendWarning", "CaptureWarning", "ConversionError", "ExecutionError", "ExportError", "GraphError",
        "GuardError", "PipelineError", "PlanError", "QuantizationError", "SerializationError", "ShardError",
        "TorchIRError", "VersionWarning",
        "WeightLoadError", "WeightWarning",
    ),
    "explorer": ("explore",),
    "formats": ("from_protobuf", "load_protobuf", "save_protobuf", "to_protobuf"),
    "golden": ("Comparison", "compare_golden", "write_golden"),
    "ir": ("IR", "Limits", "OpNode", "Symbol", "TensorMeta"),
    "ir.files.save": ("save_ir", "serialize_ir"),
    "ops": ("get_conversion_fn", "get_execution_fn", "list_registered_ops", "register_executor", "register_op"),
    "passes": ("apply_rules", "list_passes", "named_pass", "optimize", "rule_pass", "to_opset"),
    "pipeline": (
        "PipelineReport", "StageRank", "is_pipeline", "pipeline_report", "run_pipeline", "sends_of", "split",
        "stage_of", "train_pipeline", "training_report", "verify_pipeline",
    ),
    "planning": ("Cluster", "ParallelPlan", "PlanReport", "find_plan", "load_plan"),
    "quantization": (
        "ChosenRecipe", "QuantizationReport", "Recipe", "Scheme", "Sensitivity", "choose_recipe", "movement",
        "observe_ranges", "quantize", "sensitivity",
    ),
    "rewrite": ("Builder", "Pattern", "Rule", "op", "rule"),
    "run": (
        "IRExecutor", "execute_ir", "load_weights", "load_weights_pt", "load_weights_safetensors", "open_weights",
        "random_weights",
    ),
    "safety": ("deserialize_ir", "load_ir", "validate_ir"),
    "sharding": ("LocalRanks", "run_sharded", "shard", "transformers_plan", "verify_sharded"),
    "targets": (
        "Contract", "CoverageReport", "Declined", "Layer", "Lowered", "Placeholder", "Target", "bind_onnx", "coverage",
        "describe", "dynamic_shapes_of", "to_mlir", "to_onnx", "to_python", "to_stablehlo", "to_torch",
    ),
    "training": ("RecomputeReport", "extract_training", "optimizer_state", "recompute"),
    "verify": (
        "BlockReport", "Divergence", "VerificationReport", "verify_blocks", "verify_ir", "verify_ir_with_state_dict",
    ),
}  # fmt: skip
_HOME = {name: room for room, names in _ROOMS.items() for name in names}
# Functions of rooms that have public names of their own, for the error of a name that is looked up here.
_ELSEWHERE = {
    "calibration": ("calibrate",),
    "entries": ("bind_entries", "extract_entries", "extract_pipeline", "run_entries"),
    "llm": (
        "cache_in_place", "extract_llm", "generate", "merge_lora", "to_cache_form", "to_checkpoint_layout",
        "verify_llm",
    ),
    "simulators": ("to_chakra", "to_scale_sim", "to_timeloop", "to_zigzag", "write_ranks"),
}  # fmt: skip

__all__ = [
    "IR", "BackendWarning", "BlockReport", "Builder", "CaptureWarning", "ChosenRecipe", "Cluster", "Comparison",
    "Compiled", "Contract", "ConversionError", "Cost", "CoverageReport", "Declined", "Diff", "Divergence",
    "ExecutionError", "ExportError", "GraphError", "GuardError", "IRExecutor", "Layer", "Limits", "LocalRanks",
    "Lowered", "NodeInfo", "OpNode", "ParallelPlan", "Pattern", "PipelineError", "PipelineReport", "Placeholder",
    "PlanError", "PlanReport", "QuantizationError", "QuantizationReport", "Recipe", "RecomputeReport", "Rule",
    "Scheme", "Sensitivity", "SerializationError", "ShardError", "StageRank", "Symbol", "Target", "TensorMeta",
    "TorchIRError", "VerificationReport", "VersionWarning", "WeightLoadError", "WeightWarning", "__version__",
    "apply_rules", "bind_onnx", "choose_recipe", "compare_golden", "compile", "convert_exported_program", "cost",
    "cost_report", "coverage", "describe", "deserialize_ir", "diff", "dynamic_shapes_of", "execute_ir", "explore",
    "export_model", "extract_ir", "extract_training", "find_plan", "from_fx", "from_protobuf",
    "generate_op_distribution_pie", "get_conversion_fn", "get_execution_fn", "ir_to_mermaid", "is_pipeline",
    "list_backends", "list_passes", "list_registered_ops", "liveness", "load_ir", "load_plan", "load_protobuf",
    "load_weights", "load_weights_pt", "load_weights_safetensors", "meta_init", "movement", "named_pass",
    "observe_ranges", "op", "open_weights", "optimize", "optimizer_state", "pipeline_report", "quantize",
    "random_weights", "recompute", "register_backend", "register_cost", "register_executor", "register_op", "render",
    "render_pair", "rule", "rule_pass", "run_pipeline", "run_sharded", "save_ir", "save_protobuf", "sends_of",
    "sensitivity", "serialize_ir", "shard", "split", "stage_of", "subgraph", "to_mlir", "to_model_explorer", "to_onnx",
    "to_opset", "to_protobuf", "to_python", "to_stablehlo", "to_torch", "train_pipeline", "training_report",
    "transformers_plan", "validate_ir", "verify_blocks", "verify_ir", "verify_ir_with_state_dict", "verify_pipeline",
    "verify_sharded", "write_golden",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        room = next((f"; import it from torch_ir.{room}" for room, names in _ELSEWHERE.items() if name in names), "")
        raise AttributeError(f"module 'torch_ir' has no attribute {name!r}{room}")
    value = getattr(_imported(f"torch_ir.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def _imported(module: str) -> Any:
    """Import a module without garbage collection; torch does not warn that NumPy, an extra, is missing."""
    from torch_ir.ir.graph.garbage_collection import uncollected

    with uncollected():
        if "torch" in sys.modules:
            return importlib.import_module(module)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Failed to initialize NumPy")
            return importlib.import_module(module)


def __dir__() -> list[str]:
    return sorted(__all__)
