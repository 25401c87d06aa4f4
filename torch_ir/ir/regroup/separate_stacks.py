"""Replace weights that are stacks by their members, for targets and plans that name each tensor of a checkpoint."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch_ir.ir.graph.free_names import fresh, taken_names
from torch_ir.ir.graph.node import OpNode, Origin
from torch_ir.ir.graph.tensor import STACK, Param, TensorMeta
from torch_ir.ir.regroup.functions import further_entries

if TYPE_CHECKING:
    from torch_ir.ir.graph.graph import IR


def without_stacks(ir: IR) -> IR:
    """Return the graph with one weight for each member of a stack, stacked by a node; itself if it has no stacks.

    before   stack w: float32[2, 8, 4] = "experts.*.w"
    after    param w_0: float32[8, 4] = "experts.0.w";  param w_1: float32[8, 4] = "experts.1.w"
             w: float32[2, 8, 4] = aten.stack.default(tensors.0=w_0, tensors.1=w_1, dim=0)
    """
    if not any(_is_stack(param) for graph in (ir, *further_entries(ir).values()) for param in graph.params):
        return ir
    ir = ir.clone()
    for graph in (ir, *further_entries(ir).values()):
        _separate(graph)
    return ir.check()


def _is_stack(param: TensorMeta) -> bool:
    return param.param is not None and param.param.kind == STACK


def _separate(ir: IR) -> None:
    taken = taken_names(ir)
    params: list[TensorMeta] = []
    nodes: list[OpNode] = []
    for param in ir.params:
        if not _is_stack(param):
            params.append(param)
            continue
        members = [
            TensorMeta(fresh(f"{param.name}_{index}", taken), param.shape[1:], param.dtype, param=Param((key,)))
            for index, key in enumerate(param.stored_keys)
        ]
        name = fresh(f"{param.name}_stack", taken)
        result = TensorMeta(name, param.shape, param.dtype)
        arguments = [f"tensors.{index}" for index in range(len(members))]
        origin = Origin((param.key or "").partition(".*")[0])
        nodes.append(OpNode(name, "aten.stack.default", members, [result], {"dim": 0}, args=arguments, origin=origin))
        param.replace_all_uses_with(result)
        params += members
    ir.params = params
    ir.nodes = [*nodes, *ir.nodes]
