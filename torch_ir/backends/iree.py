"""The back end `iree`: the graph as MLIR, compiled by IREE for this machine's processor, weights bound at run time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import torch
from torch import Tensor

from torch_ir.backends.exact_rules import IREE
from torch_ir.backends.iree_compiler import CannotCompileError, check_module, compile_module
from torch_ir.backends.table import Run, packages, register_backend
from torch_ir.errors import ExecutionError, first_line
from torch_ir.ir import IR, OpNode, TensorMeta
from torch_ir.ops.prepare_run import with_calls_inline
from torch_ir.ops.schema import find_operator
from torch_ir.ops.torch_types import TORCH_DTYPES
from torch_ir.passes.decompose.decompose_pass import decompose
from torch_ir.passes.decompose.open_size_rules import has_open_sizes
from torch_ir.passes.decompose.rewriting import rewritten
from torch_ir.run.binding import bind
from torch_ir.targets.mlir.dialect import torch_dialect
from torch_ir.targets.mlir.graph_writer import ENTRY
from torch_ir.targets.mlir.mlir_module import refusal
from torch_ir.targets.mlir.torch_dialect import SCOPE
from torch_ir.targets.write_mlir import to_mlir

_INEXACT = {"aten.gelu.default"}  # IREE computes its tanh form with an error of 5e-5
_ALIKE = {torch.bfloat16: torch.int16, torch.bool: torch.uint8}  # dtypes that numpy lacks -> same width
_IREE_NAMES = {torch.bfloat16: "BFLOAT_16", torch.bool: "BOOL_8"}


@register_backend(
    "iree",
    "IREE's compiler, through MLIR",
    require=packages("the back end iree", "mlir", "iree", "iree.compiler", "iree.runtime"),
    races=False,  # compilation takes a minute, and others are faster
)
def prepare(ir: IR, weights: Mapping[str, Tensor]) -> Run:
    graph, values = bind(rewritten(with_calls_inline(ir), IREE), weights)
    for tensor in graph.params:
        if tensor.param is not None:  # constants are bound like weights
            tensor.param = replace(tensor.param, data=None)
    return _Module(compiled(graph), graph, values)


def compiled(graph: IR) -> bytes:
    """Compile a graph with IREE; decompose the operators it rejects, as far as torch can."""
    graph = with_calls_inline(graph)
    allowed = {name for name in torch_dialect() - _INEXACT if find_operator(name) is not None}
    while True:
        lowered = graph if allowed.issuperset(node.op_type for node in graph.nodes) else decompose(graph, allowed)
        try:
            return compile_module(to_mlir(lowered))
        except CannotCompileError as error:
            nodes = error.nodes_of(lowered) or _refused(lowered)
            refused = {node.op_type for node in nodes} & allowed
            if not refused:
                every = list(dict.fromkeys([*nodes, *_refused(lowered)]))
                raise ExecutionError(refusal("IREE", every) if every else str(error)) from None
            allowed -= refused


def _refused(graph: IR) -> list[OpNode]:
    """Return one node of each operator that IREE rejects even alone."""
    known = torch_dialect()
    kinds = {node.op_type: node for node in graph.nodes if node.op_type in known and not has_open_sizes(node)}
    return [node for node in kinds.values() if not _is_taken(_alone(node))]


def _is_taken(graph: IR) -> bool:
    try:
        check_module(to_mlir(graph))
    except CannotCompileError:
        return False
    return True


def _alone(node: OpNode) -> IR:
    """Return a graph with a copy of this node only."""
    given: dict[TensorMeta, TensorMeta] = {}

    def copied(tensor: TensorMeta) -> TensorMeta:
        if tensor not in given:
            given[tensor] = TensorMeta(tensor.name, tensor.shape, tensor.dtype)
        return given[tensor]

    copy = node.copy(copied)
    return IR([copy], list(dict.fromkeys(copy.inputs)), copy.outputs)


@cache
def _device() -> Any:
    """Return the CPU device, with torch's number of threads at the time of the first call."""
    from iree import runtime

    runtime.flags.parse_flags(f"--task_topology_group_count={torch.get_num_threads()}")
    return runtime.get_device("local-task")


class _Module:
    """A loaded module, callable with the graph's inputs."""

    def __init__(self, module: bytes, graph: IR, weights: Mapping[str, Tensor]) -> None:
        from iree import runtime

        self._dtypes = [TORCH_DTYPES[tensor.dtype] for tensor in graph.returns.inputs]
        self._held = {key: _bytes(value) for key, value in weights.items()}  # IREE does not copy them
        index = runtime.ParameterIndex()
        for key, buffer in self._held.items():
            index.add_buffer(key, buffer)
        config = runtime.Config(device=_device())
        parameters = runtime.create_io_parameters_module(config.vm_instance, index.create_provider(scope=SCOPE))
        loaded = runtime.VmModule.copy_buffer(config.vm_instance, module)
        self._entry = runtime.load_vm_modules(parameters, loaded, config=config)[-1][ENTRY]

    def __call__(self, values: Sequence[Any]) -> Sequence[Any]:
        try:
            made = self._entry(*map(_given, values))
        except Exception as error:  # IREE raises Python's built-in errors
            raise ExecutionError(f"IREE cannot run the graph: {first_line(error)[:200]}") from None
        several = () if made is None else made if isinstance(made, (tuple, list)) else (made,)
        return [_taken(*pair) for pair in zip(several, self._dtypes, strict=True)]


def _bytes(value: Tensor) -> Any:
    return value.contiguous().reshape(-1).view(torch.uint8).numpy()


def _given(value: Any) -> Any:
    """Convert a tensor to IREE's format."""
    from iree import runtime

    tensor = torch.as_tensor(value).detach().contiguous()
    plain = tensor.view(_ALIKE.get(tensor.dtype, tensor.dtype)).numpy()
    device = _device()
    if tensor.dtype not in _IREE_NAMES:
        return runtime.asdevicearray(device, plain)
    return device.allocator.allocate_buffer_copy(
        memory_type=runtime.MemoryType.DEVICE_LOCAL,
        allowed_usage=runtime.BufferUsage.DEFAULT | runtime.BufferUsage.MAPPING,
        device=device,
        buffer=plain,
        element_type=getattr(runtime.HalElementType, _IREE_NAMES[tensor.dtype]),
    )


def _taken(array: Any, dtype: torch.dtype) -> Tensor:
    """Copy a result of IREE into a tensor."""
    import numpy

    host = numpy.array(array.to_host())
    alike = _ALIKE.get(dtype)
    plain = host if alike is None else host.view(str(alike).removeprefix("torch."))
    return torch.from_numpy(plain).view(dtype)
