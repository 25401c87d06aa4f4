"""Split a dynamic size into slices: onnxscript does not simplify a split into pieces of unknown sizes, and fails."""

from __future__ import annotations

from collections.abc import Iterator

from torch_ir.analysis.shapes.size_polynomials import total
from torch_ir.ir import IR, Expr, OpNode
from torch_ir.ir.json.json_fields import Dim

_SPLITS = ("aten.chunk.default", "aten.split.Tensor", "aten.split_with_sizes.default")


def with_slices(ir: IR) -> IR:
    """Return the graph with slices for splits of a dimension with a dynamic size; itself if there are none.

    before   a, b = chunk(x, 2, dim=1)
    after    a = slice(x, dim=1, start=0, end=n);  b = slice(x, dim=1, start=n, end=2 * n)
    """
    if not any(map(_is_open, ir.all_nodes())):
        return ir
    ir = ir.clone()
    for graph in ir.all_graphs():
        graph.nodes = [new for node in graph.nodes for new in _sliced(node)]
    return ir.check()


def _is_open(node: OpNode) -> bool:
    return node.op_type in _SPLITS and any(isinstance(part.shape[node["dim"]], str) for part in node.outputs)


def _sliced(node: OpNode) -> Iterator[OpNode]:
    if not _is_open(node):
        yield node
        return
    whole, dim = node["self"], node["dim"]
    node.inputs = ()
    start: Dim = 0
    for part in node.outputs:
        end = total([start, part.shape[dim]])
        attrs = {"dim": dim, "start": _number(start), "end": _number(end), "step": 1}
        yield OpNode(
            part.name,
            "aten.slice.Tensor",
            [whole],
            [part],
            attrs,
            args=["self"],
            origin=node.origin,
            origins=node.origins,
        )
        start = end


def _number(size: Dim) -> int | Expr:
    return Expr(size) if isinstance(size, str) else size
