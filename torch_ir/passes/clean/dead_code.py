"""Dead code elimination: unused nodes, constants and functions."""

from __future__ import annotations

from torch_ir.analysis.values.rewrite_context import Knowledge
from torch_ir.ir import IR
from torch_ir.ir.regroup.functions import called_by, drop_unused
from torch_ir.passes.pass_registry import named_pass
from torch_ir.rewrite.change_log import current_journal


@named_pass("dead-code")
def dead_code(ir: IR) -> int:
    """Remove unused nodes, constants and functions; checkpoint weights stay listed, so the checkpoint still loads.

    before   a = relu(x);  b = neg(x);  return b
    after                  b = neg(x);  return b
    """
    know, entries = Knowledge.of(ir), current_journal()
    before = len(ir.nodes) + len(ir.params)
    called = called_by(ir.nodes)  # a function without calls is an entry point of the file
    kept = []
    for node in reversed(ir.nodes):
        if know.is_idle(node):
            node.inputs = ()  # release its producers, which may now be dead too
            entries.changed("dead-code", node.name, node.origins)
        else:
            kept.append(node)
    ir.nodes = kept[::-1]
    read = {symbol.tensor for symbol in ir.symbols.values()} | {target for target, _ in ir.mutations}
    ir.params = [
        param
        for param in ir.params
        if param._uses or param in read or (param.param is not None and param.param.in_state_dict)
    ]
    drop_unused(ir, called)
    return before - len(ir.nodes) - len(ir.params)
