"""Decompositions of operators, in the shape worker for a graph of a file: torch's decompositions call many rules."""

from __future__ import annotations

from typing import Any

from torch_ir.analysis.shapes.inference import Shapes
from torch_ir.analysis.shapes.shape_worker import WORKER
from torch_ir.errors import ShapeError
from torch_ir.ir import IR, OpNode
from torch_ir.ir.checks.work import current_work
from torch_ir.ops import decompose

_NO_ANSWER = "torch's decomposition crashes, or takes too much time or memory"


def decomposed(node: OpNode, device: str = "cpu", *, prims: bool = False) -> IR | str:
    """Return what `ops.decompose.decomposed` does."""
    if (work := current_work()) is None:
        return decompose.decomposed(node, device, prims=prims)
    if wrong := _mistake(node):
        return wrong
    body = WORKER.ask(node.op_type, (_in_child, _alone(node), device, prims), work.seconds, _read)
    if not isinstance(body, IR):
        return _NO_ANSWER if body is None else body
    work.spend(tensors=len(body.nodes))
    made = {step.op_type for step in body.nodes}
    if decompose.PAIRS in made and any(map(decompose.may_be_conjugated, node.inputs)):
        return decompose.READS_PAIRS  # the child does not know where inputs come from
    return body


def _alone(node: OpNode) -> IR:
    """Return a graph of one node."""
    copies = {tensor: tensor.copy() for tensor in (*node.inputs, *node.outputs)}
    copy = node.copy(copies.__getitem__)
    return IR([copy], dict.fromkeys(copy.inputs), copy.outputs)


def _mistake(node: OpNode) -> str:
    """Return why a node cannot be decomposed: its sizes, or a result that is read and not that of torch's rule."""
    shapes = Shapes(IR([], [], []))  # its sizes do not vary
    if isinstance(found := decompose.operator_of(node), str):
        return found
    try:
        made = shapes.of(node)
    except ShapeError as error:
        return str(error)
    results = node.outputs if made is None else made
    pairs = zip(node.outputs, results, strict=False)
    if len(results) == len(node.outputs) and all(shapes.agree(*pair) for pair in pairs if pair[0].consumers):
        return ""
    return "its declared results are not those of torch's shape rule"


def _in_child(alone: IR, device: str, prims: bool) -> list[str] | str:
    """Return the JSON of a decomposition in a list, or why there is none."""
    body = decompose.decomposed(alone.nodes[0], device, prims=prims)
    return [body.to_json()] if isinstance(body, IR) else body


def _read(answer: Any) -> IR | str:
    return answer if isinstance(answer, str) else IR.from_json(*answer)
