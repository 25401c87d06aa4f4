"""Export the nodes of a graph with torch's ONNX exporter: a program over flat inputs and weights, or an error message.

Weights are inputs here, without values, so that none is loaded or copied.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from functools import cache, partial
from typing import Any

import onnx_ir
import torch
import torch.fx.traceback
from torch import Tensor, fx, nn
from torch.export import ExportedProgram
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from torch_ir.errors import ConversionError, UnsupportedOperatorsError, first_line
from torch_ir.ir import IR, OpNode, TensorMeta
from torch_ir.ops.quiet_loggers import quieted
from torch_ir.ops.shared_by_threads import decomposing
from torch_ir.ops.torch_internals import FakeTensor, FakeTensorMode, onnx_core, onnx_fx_passes, onnx_registration
from torch_ir.ops.torch_types import TORCH_DTYPES
from torch_ir.passes.decompose.open_size_rules import has_open_sizes
from torch_ir.targets.node_summary import describe
from torch_ir.targets.onnx.exact_numbers import exact_for, narrowed, with_integer_division
from torch_ir.targets.onnx.fixed_sizes import SizeConditions
from torch_ir.targets.onnx.quantized_operators import translations
from torch_ir.targets.onnx.simplify import simplify
from torch_ir.targets.torch.exporting import exported
from torch_ir.targets.torch.fx_graph import write_program

NODE = "torch_ir.node"  # metadata key for the graph node a node comes from
_LOUD = ("torch.onnx", "torch.export", "onnxscript", "onnx_ir")
_aten = torch.ops.aten


def _attention(query: Tensor, key: Tensor, value: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    """Attention with four dimensions, which the exporter requires."""
    missing = (1,) * (4 - query.dim())
    whole = [part.reshape(*missing, *part.shape) for part in (query, key, value)]
    found: Tensor = _aten.scaled_dot_product_attention.default(*whole, *args, **kwargs)
    return found.reshape(found.shape[len(missing) :])


# operators that the exporter lacks -> equivalents that it supports
EQUIVALENTS: dict[Any, Callable[..., Tensor]] = {
    _aten.__lshift__.Tensor: _aten.bitwise_left_shift.Tensor,
    _aten.__rshift__.Tensor: _aten.bitwise_right_shift.Tensor,
    _aten.scaled_dot_product_attention.default: _attention,
}


def quiet() -> AbstractContextManager[None]:
    """Silence the libraries involved in an export; errors are still raised."""
    return quieted(map(logging.getLogger, _LOUD), logging.CRITICAL)


def onnx_program(
    ir: IR, nodes: Sequence[OpNode], given: Sequence[TensorMeta], wanted: Sequence[TensorMeta], opset: int
) -> torch.onnx.ONNXProgram:
    """Export nodes of a graph, none of which is a call: a program from `given` to `wanted` tensors."""
    captured = _captured(ir, nodes, given, wanted)
    conditions = SizeConditions(captured)
    registry = exact_for(_registry(opset), ir)
    try:
        with decomposing():  # which holds a lock: the exporter records into an evaluator of the process
            made = onnx_core.export(captured, registry=registry, opset_version=opset, optimize=False, verbose=False)
    except Exception as error:  # any error of the exporter
        raise _refusal(ir, captured, registry, error) from None
    if conditions.fix_a_size(ir, given):
        raise _fixed_size_error(ir, captured, registry)
    refuse_float32(ir, made.model)
    return made


def refuse_float32(ir: IR, model: onnx_ir.Model) -> None:
    """Raise ConversionError for nodes that the exporter computes in float32, but torch does not."""
    nodes = {node.name: node for node in ir.nodes}
    if lines := dict.fromkeys(_described(call, nodes) for call in narrowed(model)):
        reason = "torch.onnx computes in float32 what torch computes in float64 or in integers"
        raise ConversionError(f"{_name(ir)} cannot be converted to ONNX: {reason}:\n  " + "\n  ".join(lines))


def _registry(opset: int) -> Any:
    """Return the exporter's operators, with ours for quantised graphs."""
    return _registry_with(opset, bool(translations()))


@cache
def _registry_with(opset: int, quantized: bool) -> Any:
    """Collect the operators, which takes longer than translating a layer."""
    registry = onnx_registration.ONNXRegistry.from_torchlib(opset_version=opset)
    with_integer_division(registry)
    for operator, translation in translations().items() if quantized else ():
        registry.register_op(operator, translation, is_complex=False)
    return registry


def optimize_program(ir: IR, program: torch.onnx.ONNXProgram) -> None:
    """Fold constants; weights, which are inputs, stay."""
    try:
        simplify(program.model)
    except Exception as error:  # any error of onnxscript
        raise ConversionError(
            f"{_name(ir)} cannot be converted to ONNX: onnxscript: {first_line(_causes(error)[-1])}"
        ) from None


def origin_of(node: fx.Node) -> str:
    """Return the name of the graph node that an fx node comes from, or ""."""
    return str((node.meta.get("custom") or {}).get(NODE, ""))


class _Flat(nn.Module):
    """Runs a graph node by node, preserving the origin of each traced node."""

    def __init__(self, program: fx.GraphModule) -> None:
        super().__init__()
        self._program = (program,)  # in a tuple, so that it is not registered as a submodule

    def forward(self, *values: Any) -> tuple[Any, ...]:
        with torch.fx.traceback.preserve_node_meta():
            return tuple(fx.Interpreter(self._program[0]).run(*values))


def _captured(
    ir: IR, nodes: Sequence[OpNode], given: Sequence[TensorMeta], wanted: Sequence[TensorMeta]
) -> ExportedProgram:
    """Export nodes of a graph with torch.export."""
    program = write_program(ir, nodes, given, wanted)
    for node in program.graph.nodes:
        node.meta["custom"] = {NODE: node.name}
        node.target = EQUIVALENTS.get(node.target, node.target)
    mode = FakeTensorMode(shape_env=ShapeEnv(), allow_non_fake_inputs=True)
    return exported(ir, _Flat(program), given, partial(_fake, ir, mode), as_one=True)


def _fake(ir: IR, mode: FakeTensorMode, tensor: TensorMeta, size: Callable[[int | str], int]) -> FakeTensor:
    """Return a fake tensor with the properties of a graph tensor."""
    shape = [size(dim) for dim in tensor.shape]
    dtype = TORCH_DTYPES[tensor.dtype]
    empty = torch.empty(shape, dtype=dtype, device="meta")
    if tensor.stride is not None:
        empty = torch.empty_strided(shape, [size(step) for step in tensor.stride], dtype=dtype, device="meta")
    return FakeTensor(mode, empty, torch.device("cpu" if ir.device == "meta" else ir.device))


# -- errors -----------------------------------------------------------------------------------------------------------


def unsupported(ir: IR, operators: Iterable[str]) -> UnsupportedOperatorsError:
    """Return the error for operators that the exporter does not support, in any function of a graph."""
    missing = list(dict.fromkeys(operators))
    lines = "\n  ".join([f"{_name(ir)} cannot be converted to ONNX: unsupported operators:", *missing])
    return UnsupportedOperatorsError(lines, missing)


def _refusal(ir: IR, exported: ExportedProgram, registry: Any, error: Exception) -> ConversionError:
    """Return an error with the operators that are not supported, or that the exporter names."""
    nodes = {node.name: node for node in ir.nodes}
    calls, is_known = _conversions(exported, registry)
    unknown = [call for call in calls if not is_known(call.target)]
    blamed = re.findall(r"translating node %(\w+)", " ".join(map(str, _causes(error))))
    if unknown:
        return unsupported(ir, (_described(call, nodes) for call in unknown))
    lines = dict.fromkeys(_described(call, nodes) for call in calls if call.name in blamed)
    reason = f"torch.onnx: {first_line(_causes(error)[-1])}; at"
    return ConversionError(f"{_name(ir)} cannot be converted to ONNX: {reason}\n  " + "\n  ".join(lines or [_name(ir)]))


def _fixed_size_error(ir: IR, exported: ExportedProgram, registry: Any) -> ConversionError:
    """Return an error with the operators that the exporter decomposes, one of which fixed a size."""
    nodes = {node.name: node for node in ir.nodes}
    kept = {(origin_of(call), call.target) for call in _conversions(exported, registry)[0]}
    split = [
        node
        for call in exported.graph.nodes
        if call.op == "call_function" and (origin_of(call), call.target) not in kept
        for node in [nodes.get(origin_of(call))]
        if node is not None and has_open_sizes(node)
    ]
    lines = "\n  ".join(dict.fromkeys(map(describe, split)))
    return ConversionError(
        f"{_name(ir)} cannot be converted to ONNX: torch.onnx fixes a dynamic size where it decomposes one"
        f" of these operators; specialize the graph, or avoid the operator:\n  {lines or _name(ir)}"
    )


def _described(call: fx.Node, nodes: Mapping[str, OpNode]) -> str:
    node = nodes.get(origin_of(call))
    return str(call.target) if node is None else describe(node)


def _conversions(exported: ExportedProgram, registry: Any) -> tuple[list[fx.Node], Callable[[Any], bool]]:
    """Return the calls after the exporter's decompositions, and a predicate for the ones it supports."""
    with suppress(Exception), decomposing():  # operators that torch cannot decompose stay
        exported = onnx_fx_passes.decompose_with_registry(exported, registry)
        onnx_fx_passes.remove_assertion_nodes(exported.graph_module)
    graphs = [module.graph for module in exported.graph_module.modules() if isinstance(module, fx.GraphModule)]
    own = translations()
    calls = [node for graph in graphs for node in graph.nodes if node.op == "call_function"]
    return calls, lambda target: target in own or registry.is_registered(target)


def _causes(error: BaseException) -> list[BaseException]:
    """Return an error and its causes, the root last."""
    chain = [error]
    while chain[-1].__cause__ is not None:
        chain.append(chain[-1].__cause__)
    return chain


def _name(ir: IR) -> str:
    return ir.model_name or "the graph"
