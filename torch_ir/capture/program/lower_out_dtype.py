"""Lower `out_dtype(op, dtype, ...)` to casts of its operands, the operator, and a cast of the result.

Its first argument is an operator, which cannot be an attribute of a node.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import fx
from torch.export import ExportedProgram

from torch_ir.capture.program.lift_constants import copied, graphs
from torch_ir.ops.torch_internals import TYPE_PROMOTION_KIND, elementwise_dtypes, out_dtype, updated


def with_wide_results(program: ExportedProgram) -> ExportedProgram:
    """Return the program itself, or a copy without `out_dtype`."""
    if not any(node.target is out_dtype for module in graphs(program.graph_module) for node in module.graph.nodes):
        return program
    changed = copied(program.graph_module)
    for module in graphs(changed):
        for node in list(module.graph.nodes):
            if node.target is out_dtype:
                _write_out(module.graph, node)
        module.recompile()
    return updated(program, changed, program.graph_signature)


def _write_out(graph: fx.Graph, node: fx.Node) -> None:
    op, dtype, *operands = cast("tuple[Any, ...]", node.args)

    def call(target: Any, *args: Any) -> fx.Node:
        made = graph.call_function(target, args)
        values = fx.map_arg(args, lambda argument: argument.meta["val"])
        made.meta = {**node.meta, "val": target(*values)}
        return made

    values = [operand.meta["val"] if isinstance(operand, fx.Node) else operand for operand in operands]
    wide, _ = elementwise_dtypes(*values, torch.ones(1, dtype=dtype), type_promotion_kind=TYPE_PROMOTION_KIND.DEFAULT)
    with graph.inserting_before(node), node.meta["val"].fake_mode:
        widened = [
            call(torch.ops.aten.to.dtype, operand, wide) if isinstance(operand, fx.Node) else operand
            for operand in operands
        ]
        result = call(torch.ops.aten.to.dtype, call(op, *widened), dtype)
    node.replace_all_uses_with(result)
    graph.erase_node(node)
    result.name = node.name  # the signature refers to it
