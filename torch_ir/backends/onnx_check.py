"""Compare an ONNX model with the executor, in ONNX Runtime, and find the first node that differs."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from math import prod

import onnx_ir
import torch
from onnx_ir.tensor_adapters import from_torch_dtype
from torch import Tensor

from torch_ir.analysis.cost_model.node_costs import cost
from torch_ir.backends.deviations import may_deviate
from torch_ir.backends.onnxruntime import session
from torch_ir.backends.placement import placed
from torch_ir.backends.swept import is_elsewhere
from torch_ir.backends.verifying import DifferenceError, verify
from torch_ir.errors import ConversionError, ExecutionError
from torch_ir.ir import IR
from torch_ir.ir.graph.io_tree import flat
from torch_ir.ops.torch_types import TORCH_DTYPES
from torch_ir.passes.probe_inputs import smallest
from torch_ir.run.weight_files import random_weights

_log = logging.getLogger(__name__)
_MOST_FLOPS, _MOST_BYTES = 2e10, 1 << 30
_NAME = "onnxruntime"


def check_model(ir: IR, model: onnx_ir.Model, weights: Mapping[str, Tensor] | None) -> None:
    """Raise ConversionError if a model differs from its graph by more than rounding; skip what cannot be compared.

    Without weights, random ones are bound for this comparison alone.
    """
    name = ir.model_name or "the graph"
    if not _is_small(ir):
        _log.info("%s is too large to be compared with its ONNX file", name)
        return
    if is_elsewhere(ir):
        ir = placed(ir, torch.device("cpu"))
    values = random_weights(ir) if weights is None else weights
    try:
        _compare(ir, model, values)
    except DifferenceError as error:
        first = error
        try:
            _compare(*_with_inner_values(ir, model), values)
        except DifferenceError as inner:
            first = inner
        except ExecutionError:  # a runtime may lack kernels for what it has fused before
            pass
        node = first.tensor.producer
        what = first.tensor.name if node is None else f"{node.op_type} ({node.name})"
        raise ConversionError(
            f"in ONNX Runtime, the file of {name} would not compute {what} as the executor does: {first.tensor.name!r} "
            f"{first.found}; check=False writes it all the same"
        ) from None
    except ExecutionError as error:
        _log.info("%s is not compared with its ONNX file: %s", name, error)


def _is_small(ir: IR) -> bool:
    """Whether the weights fit in memory several times and a run at small sizes is cheap."""
    found = cost(ir, smallest(ir))
    weights = sum(prod(map(int, param.shape)) * TORCH_DTYPES[param.dtype].itemsize for param in ir.params)
    amounts = ((found.flops, _MOST_FLOPS), (found.bytes, _MOST_BYTES), (weights, _MOST_BYTES))
    return not any(isinstance(amount, int) and amount > most for amount, most in amounts)  # data-dependent ones pass


def _compare(ir: IR, model: onnx_ir.Model, weights: Mapping[str, Tensor]) -> None:
    verify(_NAME, session(ir, model, weights), ir, weights, points=2, ties=not may_deviate(ir, _NAME), small=True)


def _with_inner_values(ir: IR, model: onnx_ir.Model) -> tuple[IR, onnx_ir.Model]:
    """Return copies of a graph and its model that also return the values that both have, in order."""
    ir, model = ir.clone(), onnx_ir.from_proto(onnx_ir.to_proto(model))
    values = {(value.name, value.dtype): value for node in model.graph for value in node.outputs}
    made = [(out, (out.name, from_torch_dtype(TORCH_DTYPES[out.dtype]))) for node in ir.nodes for out in node.outputs]
    shared = {out: values[key] for out, key in made if key in values}
    old = model.graph.outputs[: len(ir.graph_outputs)]
    model.graph.outputs[: len(old)] = [*shared.values(), *old]
    ir.graph_outputs = [*shared, *ir.graph_outputs]
    ir.output_tree = flat(len(ir.graph_outputs))
    return ir, model
