"""Add the biases of quantised linear layers separately, so that ONNX Runtime multiplies integers.

ONNX Runtime replaces a product and the sum with a vector by Gemm, for which it has an integer kernel only if the bias
is quantised as well. It keeps a sum with a matrix of one row, and then finds its integer kernel for the product.
"""

from __future__ import annotations

from collections.abc import Iterator

from torch_ir.ir import IR, OpNode, TensorMeta
from torch_ir.ir.graph.free_names import fresh, taken_names

_OF_INPUT = ("quantized_decomposed.dequantize_per_tensor.default", "quantized_decomposed.dequantize_per_tensor.tensor")
_OF_WEIGHT = ("quantized_decomposed.dequantize_per_channel.default", *_OF_INPUT)


def with_separate_biases(ir: IR) -> IR:
    """Return the graph with biases of quantised linear layers added by a node; itself if there are none.

    before   y = linear(input=x, weight=w, bias=b)
    after    p = linear(input=x, weight=w);  y = p + unsqueeze(b, 0)
    """
    if not any(_is_quantized(node) for node in ir.all_nodes()):
        return ir
    ir = ir.clone()
    for graph in ir.all_graphs():
        taken = taken_names(graph)
        graph.nodes = [new for node in graph.nodes for new in _separated(node, taken)]
    return ir.check()


def _is_quantized(node: OpNode) -> bool:
    if node.op_type != "aten.linear.default" or "bias" not in node.args:
        return False
    makers = [node[name].producer for name in ("input", "weight")]
    return all(
        maker is not None and maker.op_type in kinds
        for maker, kinds in zip(makers, (_OF_INPUT, _OF_WEIGHT), strict=True)
    )


def _separated(node: OpNode, taken: set[str]) -> Iterator[OpNode]:
    if not _is_quantized(node):
        yield node
        return
    bias, result = node["bias"], node.output
    row = TensorMeta(fresh(f"{node.name}_bias", taken), (1, *bias.shape), bias.dtype)
    product = TensorMeta(fresh(f"{node.name}_product", taken), result.shape, result.dtype)
    operands = [node["input"], node["weight"]]
    attrs = {**node.attrs, "bias": None}
    node.inputs = ()
    yield OpNode(row.name, "aten.unsqueeze.default", [bias], [row], {"dim": 0}, args=["self"], origin=node.origin)
    yield OpNode(product.name, node.op_type, operands, [product], attrs, args=["input", "weight"], origin=node.origin)
    yield OpNode(
        node.name,
        "aten.add.Tensor",
        [product, row],
        [result],
        {"alpha": 1},
        args=["self", "other"],
        origin=node.origin,
        origins=node.origins,
    )
