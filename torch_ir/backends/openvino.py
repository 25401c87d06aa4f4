"""The back end `openvino`: the graph in OpenVINO, on the CPU and in the precision of the model."""

from __future__ import annotations

import os
import re
import threading
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor

from torch_ir.backends.exact_rules import OPENVINO
from torch_ir.backends.openvino_integers import check_constants, fits, range_of_inputs
from torch_ir.backends.openvino_layers import layer_per_part
from torch_ir.backends.openvino_operators import decompositions
from torch_ir.backends.table import Run, packages, register_backend
from torch_ir.errors import ConversionError, ExecutionError
from torch_ir.ir import IR, TensorMeta
from torch_ir.ir.graph.io_tree import flat
from torch_ir.ops.prepare_run import with_calls_inline
from torch_ir.ops.shared_by_threads import decomposing
from torch_ir.ops.torch_types import TORCH_DTYPES
from torch_ir.passes.decompose.rewriting import rewritten
from torch_ir.passes.pass_registry import apply_once
from torch_ir.targets.build_torch import to_torch
from torch_ir.targets.node_summary import describe
from torch_ir.targets.openvino_package import import_openvino
from torch_ir.targets.torch.exporting import exported
from torch_ir.targets.torch.nn_module import signature_of

_DIVISION = "nonconvertable_divide_0"  # marks a division that must not become a multiplication
_NOT_FUSED = frozenset(  # into their producers
    ("MatMul", "Convolution", "GroupConvolution", "Softmax", "MVN", "Gather", "Concat", "Split", "Transpose", "MaxPool")
)
_ATTENTION = "aten.scaled_dot_product_attention.default"
_IN_ENCODERS = frozenset(  # operators of common encoders and decoders, beside which fused kernels may be used
    f"aten.{name}"
    for name in (
        "add.Tensor", "cat.default", "contiguous.default", "conv1d.default", "conv2d.default", "embedding.default",
        "gather.default", "gelu.default", "layer_norm.default", "linear.default", "mul.Tensor", "permute.default",
        "relu.default", "reshape.default", "scaled_dot_product_attention.default", "select.int", "slice.Tensor",
        "split.Tensor", "split_with_sizes.default", "tanh.default", "transpose.int", "unsqueeze.default",
        "view.default",
    )
)  # fmt: skip


def _require() -> None:
    """Refuse a limit on oneDNN's instructions: some kernels of OpenVINO ignore it and write beyond their memory."""
    packages("the back end openvino", "openvino", "openvino")()
    for name in ("ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA"):
        limit = os.environ.get(name, "ALL").upper()
        if limit not in ("ALL", "DEFAULT") and not limit.startswith("AVX512"):
            raise ExecutionError(f"OpenVINO may crash with {name}={limit}; unset it, or use another back end")


@register_backend("openvino", "OpenVINO", require=_require)
def prepare(ir: IR, weights: Mapping[str, Tensor]) -> Run:
    """Compile one model for all sizes, with torch's number of threads; nothing is written or sent."""
    graph = rewritten(with_calls_inline(ir), OPENVINO).clone()
    apply_once(graph, layer_per_part)
    check_constants(graph, weights)
    made = [tensor for tensor in dict.fromkeys(graph.graph_outputs) if tensor.producer is not None]
    results = list(graph.graph_outputs)
    session = _Session(graph, made, weights) if made else None
    passed = {} if session is None else {made[index]: place for index, place in session.passed.items()}
    if passed:
        made = [tensor for tensor in made if tensor not in passed]
        session = _Session(graph, made, weights) if made else None
    numbers = {symbol.tensor for symbol in graph.symbols.values() if symbol.dim is None}
    kept = {param: weights[param.key or param.name] for param in graph.params if param in results}
    if session is not None and made == results and numbers.isdisjoint(results):
        return session.run

    def run(values: Sequence[Any]) -> Sequence[Any]:
        known: dict[TensorMeta, Any] = {**kept, **dict(zip(graph.graph_inputs, values, strict=True))}
        known.update((tensor, values[place].clone()) for tensor, place in passed.items())
        if session is not None:
            known.update(zip(made, session.run(values), strict=True))
        return [known[tensor].item() if tensor in numbers else known[tensor] for tensor in results]

    return run


class _Session:
    """A compiled model that computes some tensors of a graph, each in its own memory."""

    def __init__(self, ir: IR, made: Sequence[TensorMeta], weights: Mapping[str, Tensor]) -> None:
        self._name = ir.model_name or "the graph"
        compiled, self._memory = _compiled(ir, made, weights)
        self._request = compiled.create_infer_request()
        self._turn = threading.Lock()
        self._range = range_of_inputs(ir)
        _, *names = signature_of(ir).parameters
        # unused inputs are left out
        self._places = [next(at for at, name in enumerate(names) if name in port.names) for port in compiled.inputs]
        self._dtypes = [TORCH_DTYPES[tensor.dtype] for tensor in made]
        # at a size of 1, torch may return fewer dimensions than the graph declares
        self._shapes = [None if ir.symbols else _fixed_shape(tensor) for tensor in made]
        self.passed = {index: self._places[place] for index, place in _passed_on(compiled).items()}
        self._check_outputs(compiled, made)

    def _check_outputs(self, compiled: Any, made: Sequence[TensorMeta]) -> None:
        """Raise ConversionError if results have other dtypes or shapes than in the graph."""
        for port, tensor, shape in zip(compiled.outputs, made, self._shapes, strict=True):
            kind = _element(tensor.dtype)
            if kind is None or port.get_element_type() != kind:
                found = f"dtype {port.get_element_type().get_type_name()}"
            elif shape is not None and not _agrees(port.partial_shape, shape):
                found = f"shape {port.partial_shape}"
            else:
                continue
            raise ConversionError(
                f"OpenVINO does not run {self._name}: it returns {found} for {tensor!r}, computed by "
                f"{describe(tensor.producer) if tensor.producer else tensor.name}"
            )

    def run(self, values: Sequence[Any]) -> list[Tensor]:
        given = [torch.as_tensor(values[place]).detach().contiguous() for place in self._places]
        if not all(fits(value, self._range) for value in given):
            raise ExecutionError(
                f"OpenVINO computes integers in 32 bits or in float32, and an input of {self._name} exceeds "
                f"{self._range[1]:,}; use another back end"
            )
        found = [
            None if shape is None else torch.empty(shape, dtype=dtype)
            for shape, dtype in zip(self._shapes, self._dtypes, strict=True)
        ]
        with self._turn:
            try:
                for index, value in enumerate(given):
                    self._request.set_input_tensor(index, _shared(value))
                for index, result in enumerate(found):
                    if result is not None:
                        self._request.set_output_tensor(index, _shared(result))
                self._request.infer(share_outputs=True)
            except RuntimeError as error:
                raise ExecutionError(f"OpenVINO does not run {self._name}: {_reason(error)}") from None
            return [self._copied(index) if result is None else result for index, result in enumerate(found)]

    def _copied(self, index: int) -> Tensor:
        """Copy a result of dynamic size, which the next call overwrites."""
        dtype = self._dtypes[index]
        result = torch.from_numpy(self._request.get_output_tensor(index).data.copy())
        return result.view(dtype) if dtype == torch.bfloat16 else result


def _fixed_shape(tensor: TensorMeta) -> list[int] | None:
    fixed = [dim for dim in tensor.shape if isinstance(dim, int)]
    return fixed if len(fixed) == len(tensor.shape) else None


def _passed_on(compiled: Any) -> dict[int, int]:
    """Map results that are inputs to these inputs: OpenVINO does not write such results."""
    inputs = {port.get_node().get_friendly_name(): place for place, port in enumerate(compiled.inputs)}
    outputs = {port.get_node().get_friendly_name(): index for index, port in enumerate(compiled.outputs)}
    sources = {
        outputs[result.get_friendly_name()]: result.input_value(0).get_node().get_friendly_name()
        for result in compiled.get_runtime_model().get_results()
    }
    return {index: inputs[name] for index, name in sources.items() if name in inputs}


def _element(dtype: str) -> Any:
    """Return OpenVINO's type for a dtype; None if it has none."""
    names = {"bool": "boolean", "float16": "f16", "bfloat16": "bf16", "float32": "f32", "float64": "f64"}
    name = names.get(dtype) or dtype.replace("uint", "u").replace("int", "i")
    return getattr(_openvino().Type, name, None)


def _agrees(found: Any, shape: Sequence[int]) -> bool:
    return bool(found.compatible(_openvino().PartialShape(list(shape))))


def _shared(value: Tensor) -> Any:
    """Wrap a tensor for OpenVINO without copying."""
    openvino = _openvino()
    if value.dtype == torch.bfloat16:  # numpy lacks it
        return openvino.Tensor(value.view(torch.int16).numpy(), value.shape, openvino.Type.bf16)
    return openvino.Tensor(value.numpy(), shared_memory=True)


# -- from a graph to a compiled model ---------------------------------------------------------------------------------


@cache
def _openvino() -> Any:
    return import_openvino()


@cache
def _core() -> Any:
    return _openvino().Core()


def _compiled(ir: IR, made: Sequence[TensorMeta], weights: Mapping[str, Tensor]) -> tuple[Any, Any]:
    """Return a compiled model, and the object that keeps its weights alive."""
    model, memory = _converted(ir, made, weights)
    settings = {
        "INFERENCE_PRECISION_HINT": "f32",  # the default is bfloat16 where the CPU has it
        "INFERENCE_NUM_THREADS": torch.get_num_threads(),
        "PERFORMANCE_HINT": "LATENCY",
        "SNIPPETS_MODE": "ENABLE" if _may_fuse(ir) else "DISABLE",
    }
    try:
        return _core().compile_model(model, "CPU", settings), memory
    except RuntimeError as error:
        raise ConversionError(f"OpenVINO does not compile {ir.model_name or 'the graph'}: {_reason(error)}") from None


def _may_fuse(ir: IR) -> bool:
    """Whether OpenVINO may generate fused kernels ("snippets"), which compute attention without storing its weights.

    With fixed sizes, some of them crash the process, so they are used only in graphs of known operators with attention.
    """
    kinds = {node.op_type for node in ir.all_nodes()}
    dtypes = {tensor.dtype for node in ir.all_nodes() for tensor in (*node.inputs, *node.outputs)}
    return _ATTENTION in kinds and kinds <= _IN_ENCODERS and dtypes <= {"float32", "int64"} and not ir.symbols


def _converted(ir: IR, made: Sequence[TensorMeta], weights: Mapping[str, Tensor]) -> tuple[Any, Any]:
    """Convert the graph to an OpenVINO model that computes these tensors; also return what holds its weights."""
    manager = import_openvino("openvino.frontend").FrontEndManager()
    decode = import_openvino("openvino.frontend.pytorch.fx_decoder").TorchFXPythonDecoder
    ir.graph_outputs = list(made)
    ir.output_tree = flat(len(made))
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        program = exported(ir, to_torch(ir, weights), ir.graph_inputs, _zeros, as_one=False)
        frontend = manager.load_by_framework("pytorch")
        try:
            with decomposing():
                program = program.run_decompositions(decompositions())
            decoder = decode(program.module(), dynamic_shapes=True)
            model = frontend.convert(frontend.load(decoder))
            if not ir.symbols:
                _fix_sizes(ir, model)
            _let_divisions_be_products(model)
            return model, decoder
        except Exception as error:  # any error of the frontend
            raise ConversionError(_refusal(ir, str(error))) from None


def _zeros(tensor: TensorMeta, size: Callable[[int | str], int]) -> Tensor:
    return torch.zeros([size(dim) for dim in tensor.shape], dtype=TORCH_DTYPES[tensor.dtype])


def _fix_sizes(ir: IR, model: Any) -> None:
    """Set the sizes of a static graph, for which OpenVINO has faster kernels."""
    _, *names = signature_of(ir).parameters
    shapes = dict(zip(names, (list(tensor.shape) for tensor in ir.graph_inputs), strict=True))
    model.reshape({port: next(shapes[name] for name in port.names if name in shapes) for port in model.inputs})


def _let_divisions_be_products(model: Any) -> None:
    """Allow OpenVINO to replace a division after a reduction by a multiplication with the reciprocal.

    Otherwise it fuses the division into the reduction, which then computes only the first item of a batch.
    """
    reduced: set[str] = set()  # names of reductions and of nodes that may be fused into them
    for node in model.get_ordered_ops():
        kind, sources = node.get_type_name(), [port.get_node().get_friendly_name() for port in node.input_values()]
        if kind.startswith("Reduce") or (kind not in _NOT_FUSED and not reduced.isdisjoint(sources)):
            reduced.add(node.get_friendly_name())
            if kind == "Divide" and _DIVISION in node.get_rt_info():
                del node.get_rt_info()[_DIVISION]


# -- errors of OpenVINO -----------------------------------------------------------------------------------------------


def _refusal(ir: IR, error: str) -> str:
    """Return the error message with the unsupported operators."""
    names = set(re.findall(r"\w+\.\w+\.\w+", error.partition("Summary:")[2]))
    held = {node.op_type for node in ir.all_nodes()}
    lines = [describe(node) for node in ir.all_nodes() if node.op_type in names] + sorted(names - held)
    listed = "".join(f"\n  {line}" for line in dict.fromkeys(lines))
    reason = f"unsupported operators:{listed}" if lines else _reason(error)
    return f"{ir.model_name or 'the graph'} cannot be converted to OpenVINO: {reason}"


def _reason(error: object) -> str:
    """Return the message of an OpenVINO error without source locations."""
    lines = [line.strip() for line in str(error).splitlines()]
    messages = [line for line in lines if line and not re.match(r"Exception from |Check '|FrontEnd API failed", line)]
    return messages[0] if messages else lines[0]
