"""Parts of a graph that no input changes: their nodes, copies at other sizes, and their values."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping, Sequence

import torch

from torch_ir.analysis import cost
from torch_ir.analysis.dependencies.slices import ancestors
from torch_ir.analysis.shapes.inference import Shapes
from torch_ir.analysis.shapes.size_polynomials import weight_of
from torch_ir.errors import GraphError
from torch_ir.ir import IR, Dim, Limits, OpNode, TensorMeta
from torch_ir.ir.checks.limits import Budget
from torch_ir.ir.checks.work import spending
from torch_ir.ir.graph.free_names import FreeNames
from torch_ir.ir.sizes.specialize import replace_symbols
from torch_ir.ops.effects import is_pure
from torch_ir.ops.foldable import is_computable_here
from torch_ir.ops.torch_types import TORCH_DTYPES
from torch_ir.run import execute_ir

_MOST_BYTES = 1 << 31  # of all tensors that a value is computed from
_MOST_WORK = 1 << 34  # of all values: bytes and multiply-adds
_PER_NODE, _PER_PROCESS = 200, 1 << 28  # of this, for looking at a node of the graph, and for starting a process
_LIMITS = Limits(seconds=20)  # of a run in a separate process


def new_budget() -> Budget:
    """Return the work that the values of one graph may take, however many of its tensors are computed."""
    return Budget(_MOST_WORK)


def fixed_tensors(graph: IR) -> set[TensorMeta]:
    """Return the results of nodes that depend on weights and sizes only, not on the values of inputs."""
    changing = {*graph.graph_inputs, *(target for target, _ in graph.mutations)}
    found: set[TensorMeta] = set()
    for node in graph.nodes:
        if is_pure(node) and changing.isdisjoint(node.inputs):
            found.update(node.outputs)
        else:
            changing.update(node.outputs)
    return found


def copy_at(graph: IR, tensor: TensorMeta, sizes: Mapping[str, Dim], names: FreeNames) -> list[OpNode]:
    """Return copies, with free names, of the nodes that compute a fixed tensor, at other sizes; the last makes it."""
    nodes = _nodes_of(graph, [tensor], ())
    copies: dict[TensorMeta, TensorMeta] = {}
    for node in nodes:
        copies |= {made: made.copy(names.free(made.name)) for made in node.outputs}
    part = _part(graph, nodes, copies, [], [tensor], graph.params)
    for node in part.nodes:
        node.name = node.outputs[0].name if len(node.outputs) == 1 else names.free(node.name)
    replace_symbols(part, sizes)
    part.returns.inputs = ()
    return part.nodes


def values_at(
    graph: IR,
    tensors: Sequence[TensorMeta],
    sizes: Mapping[str, int],
    given: Mapping[TensorMeta, torch.Tensor],
    budget: Budget,
) -> list[torch.Tensor]:
    """Return the values of fixed tensors at some sizes, with random weights where the graph has no values.

    `given` are values to take for some of the tensors that they depend on.
    """
    nodes = _nodes_of(graph, tensors, given)
    read = {source for node in nodes for source in node.inputs}
    params = [param for param in graph.params if param in read]
    copies = {param: param.copy() for param in params} | {source: source.copy() for source in given if source in read}
    for node in nodes:
        copies |= {made: made.copy() for made in node.outputs}
    inputs = [source for source in given if source in copies]
    part = _part(graph, nodes, copies, inputs, tensors, params)
    replace_symbols(part, sizes)
    size = sum(map(_bytes, part.tensors()))
    shapes = Shapes(part)
    # the graph may be of an untrusted file
    isolated = not all(is_computable_here(node) and shapes.confirms(node) for node in part.nodes)
    work = size + len(graph.nodes) * _PER_NODE + isolated * _PER_PROCESS
    work += int(min(weight_of(cost(part).macs), _MOST_WORK))
    if size > _MOST_BYTES or not budget.take(work):
        raise GraphError(f"{tensors[0].name!r:.80}, which depends on positions, takes too much memory or time")
    weights = {
        param.key or param.name: _random(param) for param in part.params if not (param.param and param.param.data)
    }
    with spending(time.monotonic if isolated else time.thread_time):
        values = [given[source] for source in inputs]
        return list(execute_ir(part, values, weights, isolated=isolated, limits=_LIMITS))


def _nodes_of(graph: IR, tensors: Sequence[TensorMeta], stop: Iterable[TensorMeta]) -> list[OpNode]:
    return [node for node in ancestors(graph, tensors, stop=stop) if node.outputs]


def _part(
    graph: IR,
    nodes: Sequence[OpNode],
    copies: Mapping[TensorMeta, TensorMeta],
    inputs: Sequence[TensorMeta],
    outputs: Sequence[TensorMeta],
    params: Sequence[TensorMeta],
) -> IR:
    def copied(tensor: TensorMeta) -> TensorMeta:
        return copies.get(tensor, tensor)

    return IR(
        [node.copy(copied) for node in nodes],
        map(copied, inputs),
        map(copied, outputs),
        params=map(copied, params),
        device=graph.device,
    )


def _random(param: TensorMeta) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randn([int(size) for size in param.shape], generator=generator).to(TORCH_DTYPES[param.dtype])


def _bytes(tensor: TensorMeta) -> int:
    if not tensor.is_static:
        raise GraphError(f"{tensor.name!r:.80}, which depends on positions, has the shape {list(tensor.shape)}")
    return math.prod(map(int, tensor.shape)) * TORCH_DTYPES[tensor.dtype].itemsize
