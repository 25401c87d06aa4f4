"""Fuse connected element-wise operators of one shape into one call: one loop instead of several."""

from __future__ import annotations

import torch

from torch_ir.analysis.cost_model.traffic import is_view
from torch_ir.ir import IR, OpNode
from torch_ir.ir.graph.operator_sets import base_name
from torch_ir.ops.schema import find_operator
from torch_ir.ops.torch_internals import OpOverload
from torch_ir.passes.fuse.fused_calls import Group, Limits, fuse_groups
from torch_ir.passes.fuse.match_variants import CASTS
from torch_ir.passes.pass_registry import named_pass

_LEAST = 2  # nodes of a group


@named_pass("fuse-elementwise", fuses=True, may_raise=["peak"])
def fuse_elementwise(ir: IR) -> int:
    """Fuse element-wise operators that read each other and have one result shape into one call.

    before   mul = x * 2;  add = mul + y;  tanh = tanh(add)
    after    tanh = fused.elementwise(input=x, input_1=y)
    """
    limits = Limits(ir)
    inner = {node for node in ir.nodes if is_elementwise(node) and limits.admits(node)}
    groups = [Group("elementwise", nodes) for nodes in _connected(ir, inner) if len(nodes) >= _LEAST]
    return fuse_groups(ir, [group for group in groups if not limits.objection(group, only_result=False)])


def is_elementwise(node: OpNode) -> bool:
    """Whether each output element is computed from one element of each input."""
    operator = find_operator(node.op_type)
    if not isinstance(operator, OpOverload) or len(node.outputs) != 1 or not node.inputs:
        return False
    is_cast = base_name(node.op_type) in CASTS
    return (is_cast or torch.Tag.pointwise in operator.tags) and not is_view(node)


def _connected(ir: IR, inner: set[OpNode]) -> list[list[OpNode]]:
    """Return groups of connected fusable nodes without creating cycles.

    The depth of a node is the largest number of boundaries (edges that cannot be fused) on a path to it. No path
    between two nodes of equal depth crosses a boundary, so grouping by depth never creates a cycle.
    """
    depth: dict[OpNode, int] = {}
    group_of: dict[OpNode, list[OpNode]] = {}
    for node in ir.nodes:
        makers = [tensor.producer for tensor in node.inputs if tensor.producer is not None]
        joined = {
            maker for maker in makers if {maker, node} <= inner and maker.outputs[0].shape == node.outputs[0].shape
        }
        depth[node] = max((depth[maker] + (maker not in joined) for maker in makers), default=0)
        if node in inner:
            together = [node]
            for maker in makers:
                if maker in joined and depth[maker] == depth[node] and group_of[maker] is not together:
                    together = _merged(group_of[maker], together, group_of)
            group_of[node] = together
    return list({id(group): group for group in group_of.values()}.values())


def _merged(one: list[OpNode], other: list[OpNode], group_of: dict[OpNode, list[OpNode]]) -> list[OpNode]:
    """Merge two groups, the smaller into the larger."""
    small, large = sorted((one, other), key=len)
    large += small
    group_of.update(dict.fromkeys(small, large))
    return large
