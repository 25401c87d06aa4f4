"""The back end `onnxruntime`: the graph as ONNX in an ONNX Runtime session that shares the weights' memory."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch.utils.dlpack import from_dlpack

from torch_ir.backends.table import Run, packages, register_backend
from torch_ir.errors import ExecutionError
from torch_ir.ir import IR
from torch_ir.ops.prepare_run import with_calls_inline
from torch_ir.ops.torch_types import TORCH_DTYPES
from torch_ir.run.binding import bind
from torch_ir.targets.node_summary import describe

_NUMPY = {"float64", "float32", "float16", "int64", "int32", "int16", "int8", "uint8", "bool"}
_WIDE = ("float64", "complex128")
_SMALL = 1 << 18  # elements of all outputs together
_ALIKE = {1: torch.uint8, 2: torch.uint16, 4: torch.uint32, 8: torch.uint64}


@register_backend(
    "onnxruntime",
    "ONNX Runtime",
    require=packages("the back end onnxruntime", "onnx", "onnx", "onnxscript", "onnxruntime"),
)
def prepare(ir: IR, weights: Mapping[str, Tensor]) -> Run:
    """Create a session with torch's number of threads; nothing is written to disk."""
    from torch_ir.targets.onnx.model import onnx_model
    from torch_ir.targets.write_onnx import default_opset

    bound, values = bind(with_calls_inline(ir), weights)
    return session(bound, onnx_model(bound, default_opset(bound)), values)


def session(bound: IR, model: Any, values: Mapping[str, Tensor]) -> Run:
    """Return a function that runs the ONNX model of a graph with these values of its weights."""
    import onnx_ir
    import onnxruntime

    from torch_ir.targets.onnx.model import weights_of

    held = {name: _given(values[keys[0]]) for name, keys in weights_of(model).items()}
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.log_severity_level = 4  # errors are raised instead
    # products with dequantised weights in float: by default, their inputs are rounded to int8
    options.add_session_config_entry("session.qdq_matmulnbits_accuracy_level", "1")
    if any(tensor.dtype in _WIDE for node in bound.all_nodes() for tensor in node.outputs):
        # its fusions write numbers as float32 attributes, as 0.3 in (x @ y) * 0.3
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.add_external_initializers(list(held), list(held.values()))
    content = onnx_ir.to_proto(model).SerializeToString()
    try:
        made = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # its errors have no common base class
        raise ExecutionError(_refusal(bound, model, str(error))) from None
    names = [tensor.name for tensor in bound.graph_inputs]
    dtypes = [TORCH_DTYPES[tensor.dtype] for tensor in bound.returns.inputs]
    compute = _by_numpy(made) if _is_light(bound) else _by_memory(made, dtypes)

    def run(inputs: Sequence[Any], _held: Any = held) -> Sequence[Any]:  # keeps the weights' memory alive
        given = [value if isinstance(value, Tensor) else torch.as_tensor(value) for value in inputs]
        try:
            results = compute(dict(zip(names, given, strict=True)))
        except Exception as error:
            raise ExecutionError(_refusal(bound, model, str(error))) from None
        # without a kernel for a dtype it computes in another, and sometimes does not convert the result
        pairs = zip(results, dtypes, strict=True)
        return [result if result.dtype is dtype else result.to(dtype) for result, dtype in pairs]

    return run


def _is_light(ir: IR) -> bool:
    """Whether numpy has every dtype and outputs are small: copying is then cheaper than sharing memory."""
    known = all(tensor.dtype in _NUMPY for tensor in (*ir.graph_inputs, *ir.graph_outputs))
    sizes = [prod(map(int, tensor.shape)) if tensor.is_static else _SMALL for tensor in ir.graph_outputs]
    return known and sum(sizes) < _SMALL


def _by_numpy(session: Any) -> Callable[[Mapping[str, Tensor]], list[Tensor]]:
    names = [output.name for output in session.get_outputs()]

    def compute(feeds: Mapping[str, Tensor]) -> list[Tensor]:
        results = session.run(names, {name: value.numpy(force=True) for name, value in feeds.items()})
        return [torch.as_tensor(result) for result in results]

    return compute


def _by_memory(session: Any, dtypes: Sequence[torch.dtype]) -> Callable[[Mapping[str, Tensor]], list[Tensor]]:
    def compute(feeds: Mapping[str, Tensor]) -> list[Tensor]:
        results = session.run_with_ort_values(None, {name: _given(value) for name, value in feeds.items()})
        return [_tensor(result, dtype) for result, dtype in zip(results, dtypes, strict=True)]

    return compute


def _given(value: Tensor) -> Any:
    """Wrap a tensor for ONNX Runtime without copying; numpy lacks some of its dtypes."""
    from onnx_ir.tensor_adapters import from_torch_dtype
    from onnxruntime import OrtValue

    from torch_ir.targets.onnx.model import plain

    value = plain(value)
    same = value.view(_ALIKE[value.element_size()]).numpy()
    return OrtValue.ortvalue_from_numpy_with_onnx_type(same, from_torch_dtype(value.dtype).value)


def _tensor(value: Any, dtype: torch.dtype) -> Tensor:
    """Wrap a result of ONNX Runtime without copying, except bytes, whose dtypes dlpack does not distinguish."""
    if dtype.is_complex:
        return torch.view_as_complex(from_dlpack(value))
    return torch.from_numpy(value.numpy()).view(dtype) if dtype.itemsize == 1 else from_dlpack(value)


def _refusal(ir: IR, model: Any, error: str) -> str:
    """Return the reason of a failure, with the operator of the graph if ONNX Runtime names a node."""
    from torch_ir.targets.onnx.onnx_program import NODE

    reason = re.sub(r"^\[ONNXRuntimeError\] : \d+ : \w+ : |/\S+\.cc:\d+ ", "", error).partition("\n")[0]
    message = f"ONNX Runtime does not run {ir.model_name or 'the graph'}: {reason}"
    words = set(re.findall(r"\w+", error))
    origins = {node.metadata_props.get(NODE) for node in model.graph if node.name in words}
    named = [describe(node) for node in with_calls_inline(ir).nodes if node.name in origins]
    return f"{message}\n  {named[0]}" if named else message
