"""The back end `inductor`: torch's own compiler, with the weights as constants.

Inductor compiles the ATen calls of the graph directly, without TorchDynamo: there is nothing to trace, and nothing to
guard but sizes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, fx

from torch_ir.backends.cpu.stored_weights import with_stored_weights
from torch_ir.backends.cuda_graph import recorded, recorded_on
from torch_ir.backends.gpu.decode_attention import with_decode_attention
from torch_ir.backends.gpu.row_product import with_row_products
from torch_ir.backends.table import Run, register_backend
from torch_ir.errors import ExecutionError, first_line
from torch_ir.ir import IR, TensorMeta, evaluate
from torch_ir.ops.prepare_run import with_calls_inline
from torch_ir.ops.torch_internals import HAS_MKLDNN
from torch_ir.ops.torch_types import TORCH_DTYPES
from torch_ir.passes import optimize
from torch_ir.run.binding import bind
from torch_ir.run.compiled_plan import Sizes
from torch_ir.run.executor import read_sizes
from torch_ir.run.stored import Weight, loaded
from torch_ir.run.weight_files import fit_weights
from torch_ir.targets.torch.fx_graph import write_program

Call = Callable[..., Sequence[Any]]


def require_compiler() -> None:
    """Raise ExecutionError if there is no C++ compiler."""
    from torch_ir.ops.torch_internals import InvalidCxxCompilerError, get_cpp_compiler

    try:
        get_cpp_compiler()
    except InvalidCxxCompilerError:
        problem = "the back end inductor needs a C++ compiler and found none; install g++ or clang++"
        raise ExecutionError(problem) from None


@register_backend("inductor", "torch's own compiler", require=require_compiler, in_place=True, checks_guards=True)
def prepare(ir: IR, weights: Mapping[str, Tensor]) -> Run:
    """Compile a graph of fixed sizes now; with symbolic sizes, on the first call and per set of guards."""
    from torch_ir.backends.inductor_code import Versions, compiled

    device = torch.empty((), device=ir.device).device
    graph = with_calls_inline(ir)
    graph, values = bind(with_stored_weights(graph) if device.type == "cpu" else graph, weights)
    if device.type == "cpu" and HAS_MKLDNN:
        graph, _ = optimize(graph, passes=("winograd",))
    if device.type == "cuda":
        graph = with_row_products(with_decode_attention(graph))
    module = _module(graph, fit_weights(graph, values, {}))
    if graph.symbols:
        return _Code(graph, Versions(graph, module).run, device)
    blank = [_blank(tensor, device) for tensor in graph.graph_inputs]
    call = compiled(graph, module, _laid_out(graph, blank, device)).call
    return _Code(graph, call, device, records=device.type == "cuda")


class _Code:
    """Compiled code; with `records`, its kernels are recorded as a CUDA graph."""

    def __init__(self, ir: IR, call: Call, device: torch.device, *, records: bool = False) -> None:
        changed = {target for target, _ in ir.mutations}
        self._written = [index for index, tensor in enumerate(ir.graph_inputs) if tensor in changed]
        self._ir, self._device, self._records = ir, device, records
        self._plain = call
        self._call = recorded(call, self._written) if records else call

    def __call__(self, values: Sequence[Any]) -> Sequence[Any]:
        laid = _laid_out(self._ir, values, self._device)
        try:
            results = self._call(*laid)
        except RuntimeError as error:  # such as an assertion of the model
            raise ExecutionError(f"inductor: {first_line(error)}") from error
        for index in self._written:
            if laid[index] is not values[index]:
                values[index].copy_(laid[index])
        return results

    def bound(self, values: Sequence[Any]) -> Callable[[], Sequence[Any]]:
        """Return a function that repeats the call on these tensors; see `Compiled.bound`."""
        laid = _laid_out(self._ir, values, self._device)
        if any(one is not other for one, other in zip(laid, values, strict=True)):
            return lambda: self(values)
        if self._records and (replay := recorded_on(self._plain, laid, self._written)) is not None:
            return replay
        return lambda: self._plain(*laid)


def _module(ir: IR, weights: Sequence[Weight]) -> fx.GraphModule:
    """Return the graph as an fx module that contains the weights, from its inputs to a list of its outputs.

    It writes to the inputs that the graph changes.
    """
    module = write_program(ir, ir.nodes, [*ir.graph_inputs, *ir.params], ir.graph_outputs, writes_back=True)
    places = module.graph.find_nodes(op="placeholder")[len(ir.graph_inputs) :]
    for index, (weight, place) in enumerate(zip(weights, places, strict=True)):
        module.register_buffer(f"weight_{index}", loaded(weight))
        with module.graph.inserting_before(place):
            place.replace_all_uses_with(module.graph.get_attr(f"weight_{index}"))
        module.graph.erase_node(place)
    module.recompile()
    return module


# -- inputs -----------------------------------------------------------------------------------------------------------


def _laid_out(ir: IR, values: Sequence[Any], device: torch.device) -> list[Any]:
    """Return the inputs with the strides of the compiled code: those of the capture, or row-major."""
    has_strides = any(tensor.stride is not None for tensor in ir.graph_inputs)
    sizes = read_sizes(ir, values) if has_strides and ir.symbols else {}
    numbers = {symbol.tensor for symbol in ir.symbols.values() if symbol.dim is None}
    laid = []
    for tensor, value in zip(ir.graph_inputs, values, strict=True):
        if not isinstance(value, Tensor) and tensor not in numbers:  # a 0-d tensor passed as a number
            value = torch.tensor(value, dtype=TORCH_DTYPES[tensor.dtype], device=device)
        if isinstance(value, Tensor) and value.device != device:
            raise ExecutionError(f"input {tensor.name!r} is on {value.device}, but the graph runs on {device}; move it")
        laid.append(_with_strides(tensor, value, sizes) if isinstance(value, Tensor) else value)
    return laid


def _with_strides(tensor: TensorMeta, value: Tensor, sizes: Sizes) -> Tensor:
    wanted = tuple(int(evaluate(step, sizes)) for step in tensor.stride or ())
    if not wanted or 0 in wanted:  # an expanded tensor has no memory to copy to
        return value.contiguous()
    return value if value.stride() == wanted else value.new_empty_strided(value.shape, wanted).copy_(value)


def _blank(tensor: TensorMeta, device: torch.device) -> Tensor:
    """Return an uninitialised input tensor."""
    shape: Any = tensor.shape
    return torch.empty(shape, dtype=TORCH_DTYPES[tensor.dtype], device=device)
