"""Branches that write to their inputs: the new values become results, and the write moves after the call.

before   y = cond(p, {seen.add_(1); x + seen}, {x - 1}, (x, seen))
after    y, new = cond(p, {copy = seen.clone(); copy.add_(1); x + copy, copy}, {x - 1, seen.clone()}, (x, seen))
         seen.copy_(new)

An input that the body of a loop writes to becomes a carried value first.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import fx
from torch.export import ExportedProgram

from torch_ir.capture.program.lift_constants import copied, placeholders
from torch_ir.errors import ConversionError
from torch_ir.ops.effects import written_arguments
from torch_ir.ops.schema import bind
from torch_ir.ops.torch_internals import OpOverload, dense_memory_key, updated

_COND = torch.ops.higher_order.cond
_WHILE = torch.ops.higher_order.while_loop


def without_writes_in_branches(program: ExportedProgram) -> ExportedProgram:
    """Return the program itself, or a copy whose branches do not write to their inputs."""
    if not _written_in_calls(program.graph_module):
        return program
    changed = copied(program.graph_module)
    _move_writes(changed)
    return updated(program, changed, program.graph_signature)


def _written_in_calls(module: fx.GraphModule) -> bool:
    bodies = [body for call in _calls(module) for body in _branches(module, call)]
    return any(_written(body) or _written_in_calls(body) for body in bodies)


def _move_writes(module: fx.GraphModule) -> None:
    for call in _calls(module):
        bodies = _branches(module, call)
        for body in bodies:
            _move_writes(body)
        written = sorted({index for body in bodies for index in _written(body)})
        targets = [_operands(call)[index] for index in written]
        _refuse_shared_memory(call, targets)
        if call.target is _WHILE:
            written = _carry(call, bodies, written)
        for body in bodies if call.target is _COND else bodies[1:]:
            _return_new_values(body, written)
        _write_behind(module.graph, call, targets)
    module.recompile()


def _refuse_shared_memory(call: fx.Node, targets: list[fx.Node]) -> None:
    """Refuse a branch that writes to memory which another of its inputs shares: each becomes a copy."""
    memories = [_memory(operand) for operand in _operands(call)]
    for target in targets:
        if memories.count(_memory(target)) > 1:
            raise ConversionError(f"{call.name} writes to {target.name}, which shares memory with another input")


def _carry(call: fx.Node, bodies: list[fx.GraphModule], written: list[int]) -> list[int]:
    """Turn some additional inputs of a loop into carried values; return their new positions."""
    condition, step, carried, _ = call.args
    start = len(carried)  # type: ignore[arg-type]  # a tuple
    if written and written[0] < start:
        raise ConversionError(f"the body of {call.name} writes to a carried value; return the new value instead")
    operands = _operands(call)
    moved = [operands[index] for index in written]
    kept = [operand for index, operand in enumerate(operands[start:], start) if index not in written]
    call.args = (condition, step, (*operands[:start], *moved), tuple(kept))
    call.kwargs = {}  # torch records the written operands there
    for body in bodies:
        inputs = placeholders(body)
        for index in reversed(written):
            inputs[start - 1].append(inputs[index])
    return list(range(start, start + len(written)))


def _return_new_values(body: fx.GraphModule, written: list[int]) -> None:
    """Make a branch write to copies of some inputs, and return these after its results."""
    inputs = placeholders(body)
    copies = [_use_copy(body.graph, inputs[index], inputs[-1]) for index in written]
    results: Any = body.graph.output_node().args[0]
    body.graph.output_node().args = ((*results, *copies),)
    body.recompile()


def _use_copy(graph: fx.Graph, given: fx.Node, last: fx.Node) -> fx.Node:
    with graph.inserting_after(last):
        made = graph.call_function(torch.ops.aten.clone.default, (given,))
    made.meta = dict(given.meta)
    given.replace_all_uses_with(made, delete_user_cb=lambda user: user is not made)
    return made


def _write_behind(graph: fx.Graph, call: fx.Node, targets: list[fx.Node]) -> None:
    for target in targets:
        with graph.inserting_after(call):
            new = graph.call_function(operator.getitem, (call, len(call.meta["val"])))
        with graph.inserting_after(new):
            write = graph.call_function(torch.ops.aten.copy_.default, (target, new))
        for made in (new, write):
            made.meta = {**call.meta, "val": target.meta["val"]}
        call.meta["val"] = (*call.meta["val"], target.meta["val"])


def _calls(module: fx.GraphModule) -> list[fx.Node]:
    return [node for node in module.graph.nodes if node.target in (_COND, _WHILE)]


def _operands(call: fx.Node) -> tuple[Any, ...]:
    """Return the operands of a call's bodies, in order."""
    given: Any = call.args[3:] if call.target is _COND else call.args[2:]
    return tuple(operand for part in given for operand in part)


def _branches(module: fx.GraphModule, call: fx.Node) -> list[fx.GraphModule]:
    named = [argument for argument in call.args if isinstance(argument, fx.Node) and argument.op == "get_attr"]
    return [getattr(module, str(argument.target)) for argument in named]


def _written(body: fx.GraphModule) -> list[int]:
    """Return the indices of the inputs that a branch writes to, directly or through a view."""
    written = {_memory(target) for node in body.graph.nodes for target in _targets(node)}
    return [index for index, given in enumerate(placeholders(body)) if _memory(given) in written - {None}]


def _targets(node: fx.Node) -> list[Any]:
    """Return the arguments that a call writes to."""
    if not isinstance(node.target, OpOverload):
        return []
    bound = bind(node.target, node.args, node.kwargs)
    written = [bound[name] for name in written_arguments(node.target, bound)]
    return [item for value in written for item in (value if isinstance(value, (list, tuple)) else [value])]


def _memory(node: Any) -> int | None:
    return dense_memory_key(node.meta.get("val")) if isinstance(node, fx.Node) else None
