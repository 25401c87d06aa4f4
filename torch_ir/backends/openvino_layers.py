"""Linear layers as OpenVINO computes them fastest: one for each result."""

from __future__ import annotations

from torch_ir.ir import OpNode, TensorMeta
from torch_ir.passes.weights.affine import LINEAR
from torch_ir.rewrite import Builder, op, rule

_CAT = "aten.cat.default"
_merged = op(LINEAR, input="x", weight=op(_CAT, dim=0).named("weights"), bias="bias").read_once()


@rule(op("aten.split.Tensor", "aten.split_with_sizes.default", self=_merged))
def layer_per_part(g: Builder, node: OpNode, x: TensorMeta, weights: OpNode, bias: TensorMeta | None) -> object:
    """split(linear(x, cat([w1, w2]), cat([b1, b2])), ..., -1)  ->  linear(x, w1, b1), linear(x, w2, b2)

    OpenVINO copies the parts of a result.
    """
    sizes = [part.shape[-1] for part in node.outputs]
    rows = _joined(weights.output, len(sizes))
    biases = [None] * len(rows) if bias is None else _joined(bias, len(sizes))
    is_last = node["dim"] in (-1, len(node["self"].shape) - 1)
    if not is_last or [row.shape[0] for row in rows] != sizes or len(biases) != len(rows):
        return None
    if any(each is not None and each.shape[0] != size for each, size in zip(biases, sizes, strict=True)):
        return None
    return [g.op(LINEAR, input=x, weight=row, bias=each) for row, each in zip(rows, biases, strict=True)]


def _joined(tensor: TensorMeta, most: int) -> list[TensorMeta]:
    """Return the tensors that are joined along their first dimension to this one, in one step or several.

    The search ends when there are more than `most`.
    """
    found: list[TensorMeta] = []
    left = [tensor]
    while left and len(found) <= most:
        tensor = left.pop()
        node = tensor.producer
        if node is not None and node.op_type == _CAT and node["dim"] == 0:
            left += reversed(node.elements("tensors"))
        else:
            found.append(tensor)
    return found
