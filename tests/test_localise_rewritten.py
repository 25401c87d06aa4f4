"""Localisation in graphs that were changed after capture."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.localising import TWICE, X, localised
from tests.proof import captured, module, verdict
from torch_ir import IR, OpNode
from torch_ir.ir.regroup.functions import outline


def with_split_linear() -> IR:
    """TWICE with its second layer as transpose, product and sum, none of which the model calls."""
    ir = captured(TWICE, X)
    linear = ir.node("linear_1")
    x, weight, bias = linear.inputs
    turned, product = weight.copy("turned"), x.copy("product")
    turned.param = None
    names = ["self", "mat2"]
    nodes = [
        OpNode("turned", "aten.t.default", [weight], [turned], args=["self"], origin=linear.origin),
        OpNode("product", "aten.mm.default", [x, turned], [product], args=names, origin=linear.origin),
        OpNode("sum", "aten.add.Tensor", [product, bias], linear.outputs, {"alpha": 1}, args=["self", "other"],
               origin=linear.origin),
    ]  # fmt: skip
    linear.inputs = ()
    at = ir.nodes.index(linear)
    ir.nodes[at : at + 1] = nodes
    assert verdict(ir.check(), TWICE, X).is_valid
    return ir


def test_rewritten_nodes_are_not_blamed() -> None:
    """Nodes without a counterpart are not errors as long as their results are the original's."""
    ir = with_split_linear()
    ir.node("relu").op_type = "aten.sin.default"
    found, _ = localised(ir, TWICE, X)
    assert (found.node, found.suspects) == ("relu", ())


def test_rewritten_nodes_are_suspected() -> None:
    """An error among nodes without counterparts shows at the next comparable value; they are listed."""
    ir = with_split_linear()
    ir.node("sum").attrs["alpha"] = 2
    found, report = localised(ir, TWICE, X)
    assert "sum" in (found.node, *found.suspects)
    assert any("of 8 values were compared" in note for note in report.notes)


class Masked(nn.Module):
    """As language models do: a mask where the graph is captured, and a flag instead of it in eager mode."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.out = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        q = self.query(x)[None]
        if torch.compiler.is_exporting():
            mask = torch.arange(3)[:, None] >= torch.arange(3)
            return self.out(F.scaled_dot_product_attention(q, q, q, mask))
        return self.out(F.scaled_dot_product_attention(q, q, q, is_causal=True))


def test_a_model_that_is_captured_in_another_way() -> None:
    """Nodes that the model does without in eager mode are suspected only where they may be at fault."""
    model = Masked().eval()
    ir = captured(model, X)
    assert verdict(ir, model, X, probe=False).is_valid
    wrong = ir.clone()
    wrong.node("linear_1").inputs = (*wrong.node("linear_1").inputs[:2], wrong.node("linear")["bias"])
    found, _ = localised(wrong, model, X)
    assert (found.node, found.suspects) == ("linear_1", ())
    ir.node("ge").op_type = "aten.le.Tensor"
    found, _ = localised(ir, model, X)
    assert found.op_type == "aten.scaled_dot_product_attention.default"
    assert found.agreed == ("unsqueeze",)
    assert "ge" in found.suspects


def test_a_file_without_modules() -> None:
    """Version 0 files have no origins; they are localised by operators alone."""
    document = captured(TWICE, X).to_dict()
    for node in document["nodes"]:
        for key in ("module", "module_class", "call", "source", "args"):
            node.pop(key, None)
    ir = IR.from_dict(document)
    ir.node("linear_2").inputs = (ir.node("relu").output, *ir.node("linear_2").inputs[1:])
    assert localised(ir, TWICE, X)[0].node == "linear_2"


def test_functions_are_looked_into() -> None:
    """An error inside a called function is found there, and the node's name is explained."""
    ir = captured(TWICE, X)
    ir.node("relu").op_type = "aten.sin.default"
    outline(ir, [ir.node("linear_1"), ir.node("relu")], "block")
    found, report = localised(ir, TWICE, X)
    assert found.op_type == "aten.sin.default"
    assert any("functions were inlined" in note for note in report.notes)


@torch.library.custom_op("torch_ir_tests::half", mutates_args=())
def half(x: Tensor, factor: float) -> Tensor:
    return x * factor


@half.register_fake
def _(x: Tensor, factor: float) -> Tensor:
    return torch.empty_like(x)


def test_operators_of_the_user() -> None:
    """An operator of torch.library is compared like any other."""
    model = module(lambda self, x: half(x.sin(), 0.5).cos())
    ir = captured(model, X)
    ir.node("half").attrs["factor"] = 0.25
    assert localised(ir, model, X)[0].node == "half"
