"""Layers that were stamped, as calls of the function that the recorded ones have become."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from torch_ir.capture.fast.call_tape import Stamp
from torch_ir.capture.fast.stamping import UnlikeError
from torch_ir.ir import IR, OpNode

STAMP = "stamp"  # the op_type of what stands for such a layer meanwhile


class Stamped(NamedTuple):
    """A stamp, with the names that its nodes and what they make would have if they were there."""

    stamp: Stamp
    nodes: Sequence[str]
    made: Mapping[int, str]


def put_calls(ir: IR, stamps: Mapping[str, Stamped], values: Mapping[str, int]) -> None:
    """Let every stamp in a graph be a call like that of the layer which was recorded; `values` are those of tensors."""
    calls = {node.origin.module: node for node in ir.nodes if node.is_call}
    for at, node in enumerate(ir.nodes):
        if node.op_type == STAMP:
            try:
                ir.nodes[at] = _call(node, stamps[node.name], calls, values)
            except KeyError as name:  # of a layer that is no function, or a value that was made where a call wrote
                raise UnlikeError(f"{node.name!r} cannot be a call of a function: {name}") from None


def _call(node: OpNode, stamped: Stamped, calls: Mapping[str, OpNode], values: Mapping[str, int]) -> OpNode:
    stamp, recording = stamped.stamp, stamped.stamp.recording
    model = calls[recording.path]
    read = dict(zip(recording.read, node.inputs, strict=True))
    inputs = [read[recording.place(values[tensor.name])] for tensor in model.inputs]
    given = {tensor.name: tensor for tensor in node.outputs}
    outputs = []
    for tensor in model.outputs:
        name = stamped.made[recording.place(values[tensor.name])[1]]
        outputs.append(given.pop(name) if name in given else tensor.copy(name))
    if any(tensor.consumers for tensor in given.values()):
        raise UnlikeError(f"{stamp.path!r} gives what {recording.path!r} does not")
    node.inputs = ()
    return OpNode(
        node.name,
        model.op_type,
        inputs,
        outputs,
        model.attrs,
        args=model.args,
        origin=model.origin._replace(module=stamp.path),
        origins=stamped.nodes,
    )
