"""Decomposing an operator: one step at a time, with the same result, or one reason why not."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.export import Dim

from tests.graphs import tensor
from tests.proof import captured, module
from torch_ir import IR, IRExecutor, OpNode
from torch_ir.ir.graph.attr_types import FunctionRef
from torch_ir.ir.regroup.functions import inline_all
from torch_ir.ops.decompose import decomposed

F = nn.functional
IMAGE, ROWS = torch.randn(2, 4, 6, 6), torch.randn(3, 8)
CALLS: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "aten.linear.default": (F.linear, (ROWS, torch.randn(5, 8), torch.randn(5))),
    "aten.layer_norm.default": (lambda x, w: F.layer_norm(x, (8,), w), (ROWS, torch.randn(8))),
    "aten.group_norm.default": (lambda x: F.group_norm(x, 2), (IMAGE,)),
    "aten.batch_norm.default": (lambda x, m, v: F.batch_norm(x, m, v), (IMAGE, torch.randn(4), torch.rand(4) + 1)),
    "aten.instance_norm.default": (lambda x: F.instance_norm(x), (IMAGE,)),
    "aten.softmax.int": (lambda x: F.softmax(x, -1), (ROWS,)),
    "aten.gelu.default": (F.gelu, (ROWS,)),
    "aten.silu.default": (F.silu, (ROWS,)),
    "aten.hardswish.default": (F.hardswish, (ROWS,)),
    "aten.conv2d.padding": (lambda x, w: F.conv2d(x, w, padding="same"), (IMAGE, torch.randn(3, 4, 3, 3))),
    "aten.adaptive_avg_pool2d.default": (lambda x: F.adaptive_avg_pool2d(x, 1), (IMAGE,)),
    "aten.scaled_dot_product_attention.default": (
        lambda x: F.scaled_dot_product_attention(x, x, x, is_causal=True),
        (IMAGE,),
    ),
    "aten.einsum.default": (lambda x, y: torch.einsum("ij,kj->ik", x, y), (ROWS, torch.randn(5, 8))),
    "aten.split.Tensor": (lambda x: x.split(3, 1), (ROWS,)),
    "aten.stack.default": (lambda x: torch.stack([x, x + 1]), (ROWS,)),
    "aten.masked_fill.Scalar": (lambda x: x.masked_fill(x > 0, -1.0), (ROWS,)),
    "aten.triu.default": (lambda x: x.triu(1), (ROWS,)),
    "aten.upsample_bilinear2d.vec": (lambda x: F.interpolate(x, scale_factor=2.0, mode="bilinear"), (IMAGE,)),
    "aten.embedding.default": (F.embedding, (torch.tensor([[2, 0], [1, 1]]), ROWS)),
}


def taken_apart(ir: IR, chosen: Callable[[OpNode], bool]) -> list[str]:
    """Replace each chosen node by its decomposition; return the operators of the new nodes."""
    parts: list[str] = []
    for number, node in enumerate(filter(chosen, list(ir.nodes))):
        body = decomposed(node)
        if isinstance(body, IR):
            parts += [step.op_type for step in body.check().nodes]
            ir.functions[f"body{number}"] = body
            node.set_inputs(node.inputs, [given.name for given in body.graph_inputs])
            node.op_type, node.attrs = "call", {"function": FunctionRef(f"body{number}")}
    inline_all(ir)
    ir.check()
    return parts


@pytest.mark.parametrize("name", CALLS)
def test_the_result_stays_the_same(name: str) -> None:
    """After one step, and after a second step of everything that it gave."""
    function, inputs = CALLS[name]
    ir = captured(module(lambda self, *tensors: function(*tensors)), *inputs)
    wanted = IRExecutor(ir, {}).execute(inputs)
    parts = taken_apart(ir, lambda node: node.op_type == name)
    assert parts
    assert name not in {node.op_type for node in ir.nodes}
    torch.testing.assert_close(IRExecutor(ir, {}).execute(inputs), wanted)
    taken_apart(ir, lambda node: node.op_type in parts)
    torch.testing.assert_close(IRExecutor(ir, {}).execute(inputs), wanted)


def test_recurrent_layers_fall_into_linear_ones() -> None:
    """Not into a kernel of one machine."""
    ir = captured(nn.LSTM(8, 4).eval(), torch.randn(3, 2, 8))
    parts = taken_apart(ir, lambda node: node.op_type == "aten.lstm.input")
    assert "aten.linear.default" in parts
    assert not any("mkldnn" in part for part in parts)


def test_composites_inside_stay_whole() -> None:
    """One step, not all the way down: a target that has `softmax` keeps it."""
    ir = captured(module(lambda self, x: F.scaled_dot_product_attention(x, x, x)), IMAGE)
    parts = taken_apart(ir, lambda node: True)
    assert parts == ["aten._scaled_dot_product_attention_math.default"]
    assert {"aten.matmul.default", "aten._safe_softmax.default"} <= set(taken_apart(ir, lambda node: True))


def test_what_is_made_anew_is_on_the_device_of_the_graph() -> None:
    node = captured(module(lambda self, x: x.triu()), ROWS).nodes[0]
    body = decomposed(node, device="cuda:1")
    assert isinstance(body, IR)
    assert {step.attrs["device"] for step in body.nodes if "device" in step.attrs} == {"cuda:1"}


def test_what_cannot_be_taken_apart_says_why() -> None:
    x, y = tensor("x", 2, 3), tensor("y", 2, 3)
    bmm = captured(module(lambda self, x: torch.bmm(x, x)), torch.randn(2, 3, 3)).nodes[0]
    assert decomposed(bmm) == "torch has no decomposition of it"
    assert decomposed(OpNode("y", "mylib.mix.default", [x], [y])) == "it is not an operator of torch"
    assert decomposed(OpNode("y", "aten.gelu.default", [x], [y])) == "its arguments have no names"
    wrong = OpNode("y", "aten.gelu.default", [x], [tensor("y", 9)], {"approximate": "none"}, args=["self"])
    assert decomposed(wrong) == "'y' is made as float32[9], but read as float32[2, 3]"
    wrong = OpNode("y", "aten.gelu.default", [x], [y], {}, args=["self"])
    assert str(decomposed(wrong)).startswith("torch's decomposition fails")
    ir = captured(module(lambda self, x: F.gelu(x)), ROWS, dynamic_shapes=({0: Dim("batch")},))
    assert decomposed(ir.nodes[0]) == "its sizes vary: batch; fix them with ir.specialize(...)"
    assert isinstance(decomposed(ir.specialize(batch=3).nodes[0]), IR)
