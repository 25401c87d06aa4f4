"""Decomposition: only operators of the chosen set remain, and the graph computes the same."""

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim
from torch.nn import functional

from tests.proof import captured, module
from tests.rewriting import lines, small, text
from torch_ir import IR, IRExecutor, extract_ir, meta_init, to_opset
from torch_ir.errors import CommandError, ConversionError
from torch_ir.ir.regroup.functions import outline
from torch_ir.passes import optimize
from torch_ir.passes.decompose.decompose_pass import decompose
from torch_ir.passes.decompose.rewriting import rewritten
from torch_ir.passes.random_check import prove


class _Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(8)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.feed = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Dropout(0.1), nn.Linear(16, 8))

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(x)
        x = x + self.attention(y, y, y, need_weights=False)[0]
        return x + self.feed(x).softmax(-1)


def _block(**options: object) -> IR:
    with meta_init():
        model = _Block().eval()
    return extract_ir(model, (torch.empty(3, 5, 8, device="meta"),), **options)  # type: ignore[arg-type]


def _is_core(op_type: str) -> bool:
    namespace, name, overload = op_type.split(".")
    return torch.Tag.core in getattr(getattr(getattr(torch.ops, namespace), name), overload).tags


def test_a_model_becomes_core_aten() -> None:
    """Only core operators remain of a transformer block, with the same results."""
    ir = _block()
    assert not all(_is_core(node.op_type) for node in ir.nodes)
    after = decompose(ir)
    assert all(_is_core(node.op_type) for node in after.nodes), after
    proof = prove(ir, after)
    assert proof.is_valid, proof


def test_steps_keep_where_they_came_from() -> None:
    """Every new node has the origin and the origins of the node that it replaces."""
    ir = _block()
    places = {node.name: node.origin for node in ir.nodes}
    for node in decompose(ir).nodes:
        assert [node.origin] == [places[name] for name in node.origins]


def test_a_list_says_what_may_remain() -> None:
    """Operators of the list stay whole, those inside them are not touched, and the rest is taken apart."""
    ir = small(
        "x: float32[2, 8]",
        weights="w: float32[8], b: float32[8], v: float32[4, 8]",
        norm="aten.layer_norm.default(x, [8], w, b)",
        linear="aten.linear.default(norm, v)",
    )
    after = decompose(ir, ["aten.native_layer_norm", "aten.linear.default"])
    assert text(after) == lines("""
        graph(x: float32[2, 8]) {
          param w: float32[8] = "w"
          param b: float32[8] = "b"
          param v: float32[4, 8] = "v"
          native_layer_norm_0: float32[2, 8], native_layer_norm_1: float32[2, 1], native_layer_norm_2: float32[2, 1] = aten.native_layer_norm.default(input=x, weight=w, bias=b, normalized_shape=[8], eps=1e-05)
          linear: float32[2, 4] = aten.linear.default(input=native_layer_norm_0, weight=v, bias=None)
          return linear
        }
    """)  # noqa: E501  # a node is a line
    assert prove(ir, after).is_valid


def test_what_torch_has_no_rule_for_stays() -> None:
    """Decomposition stops where torch's rules end, and the report lists the operators."""
    ir = small("x: float32[2, 8]", relu="aten.relu.default(x)", sort="aten.cumsum.default(relu, 1)")
    after, report = optimize(ir, passes=["decompose:to=aten.relu"])
    assert [node.op_type for node in after.nodes] == ["aten.relu.default", "aten.cumsum.default"]
    assert [decline.why for decline in report.declined] == ["aten.cumsum.default: torch has no decomposition of it"]


def test_operators_that_fall_into_each_other_stop() -> None:
    """However torch's rules go round, the work ends."""
    ir = small("x: float32[2, 8]", ["split_0"], split="aten.split.Tensor(x, 4, 1)")
    after = decompose(ir, "aten.relu")
    assert prove(ir, after).is_valid


def test_an_idle_operator_goes() -> None:
    """A node that torch decomposes to nothing is replaced by its input."""
    ir = small(
        "x: float32[2]", exp="aten.exp.default(x)", same="aten.contiguous.default(exp)", neg="aten.neg.default(same)"
    )
    assert [node.op_type for node in decompose(ir).nodes] == ["aten.exp.default", "aten.neg.default"]


def test_a_tensor_that_lies_in_another_way_is_copied_where_it_must_be() -> None:
    """Attention chooses the strides of its result, its parts do not: a view of that result becomes a copy."""

    def forward(self: nn.Module, q: Tensor) -> Tensor:
        return nn.functional.scaled_dot_product_attention(q, q, q).transpose(1, 2).reshape(2, 5, 32)

    ir = captured(module(forward), torch.randn(2, 5, 4, 8).transpose(1, 2))
    after = decompose(ir)
    assert [node.op_type for node in after.nodes][-3:] == [
        "aten.permute.default",
        "aten.clone.default",
        "aten.view.default",
    ]
    assert prove(ir, after).is_valid


def test_batch_norm_in_inference_is_one_core_operator() -> None:
    """It stays whole, as torch.export keeps it, unless the set does not have it."""
    call = "aten.batch_norm.default(x, w, b, m, v, False, 0.1, 1e-5, True)"
    weights = "w: float32[4], b: float32[4], m: float32[4], v: float32[4]"
    ir = small("x: float32[2, 4, 3]", weights=weights, norm=call)
    after = decompose(ir)
    assert [node.op_type for node in after.nodes] == ["aten._native_batch_norm_legit_no_training.default"]
    assert prove(ir, after).is_valid
    assert "aten.sqrt.default" in [node.op_type for node in decompose(ir, "aten.add,aten.mul,aten.sqrt").nodes]


def test_fused_calls_are_put_inline_unless_they_may_remain() -> None:
    """A fused operator is its body, which is taken apart in turn."""
    ir = small("x: float32[2, 8]", silu="aten.silu.default(x)", norm="aten.layer_norm.default(silu, [8])")
    outline(ir, ir.nodes, "silu_norm", "fused.silu_norm")
    kept = decompose(ir, "fused.silu_norm")
    assert [node.op_type for node in kept.nodes] == ["fused.silu_norm"]
    after = decompose(ir)
    assert [node.op_type for node in after.nodes] == [
        "aten.sigmoid.default",
        "aten.mul.Tensor",
        "aten.native_layer_norm.default",
    ]
    assert prove(ir, after).is_valid


def test_functions_are_taken_apart_too() -> None:
    """A block that is called several times is taken apart once, in its body."""
    ir = small("x: float32[2, 8]", one="aten.silu.default(x)", two="aten.silu.default(one)")
    outline(ir, ir.nodes[:1], "block")
    after = decompose(ir)
    assert [node.op_type for node in after.functions["block"].nodes] == ["aten.sigmoid.default", "aten.mul.Tensor"]
    assert [node.op_type for node in after.nodes] == ["call", "aten.sigmoid.default", "aten.mul.Tensor"]
    assert prove(ir, after).is_valid


def test_open_sizes_stay_open() -> None:
    """With a dynamic size, steps have expressions, and the graph is valid at every size."""

    def forward(self: nn.Module, x: Tensor) -> Tensor:
        return self.layer(x.transpose(0, 1)).softmax(-1)  # type: ignore[operator]

    model = module(forward, layer=nn.Linear(8, 4))
    ir = captured(model, torch.randn(3, 5, 8), dynamic_shapes={"x": {0: Dim("batch", min=2, max=64)}})
    assert not ir.is_static
    after = decompose(ir)
    assert all(_is_core(node.op_type) for node in after.nodes), after
    assert {dim for node in after.nodes for made in node.outputs for dim in made.shape} >= {"batch", 5, 8, 4}
    proof = prove(ir, after, trials=3)
    assert proof.is_valid, proof


@pytest.mark.slow
def test_a_block_with_an_open_size_becomes_core_aten() -> None:
    """The same of a whole transformer block."""
    ir = _block(dynamic_shapes={"x": {0: Dim("batch", min=2, max=64)}})
    after = decompose(ir)
    assert all(_is_core(node.op_type) for node in after.nodes), after
    assert prove(ir, after, trials=3).is_valid


@pytest.mark.parametrize(
    ("to", "message"),
    [
        ("aten.addd.Tensor", r"unknown operator 'aten.addd.Tensor'; did you mean 'aten.add.Tensor'\?"),
        ("cores", "unknown operator 'cores'"),
        (" , ", "the operator set is empty"),
    ],
)
def test_a_set_that_is_none_is_refused(to: str, message: str) -> None:
    """One sentence, with the nearest name."""
    with pytest.raises(CommandError, match=message):
        decompose(small("x: float32[2]", relu="aten.relu.default(x)"), to)


@pytest.mark.parametrize("to", ["core-aten", "prims"])
@pytest.mark.parametrize("weight", [None, torch.linspace(0.5, 2, 7)], ids=["", "weighted"])
@pytest.mark.parametrize("shape", [(4, 7), (4, 7, 3), (7,)], ids=str)
def test_losses_do_not_read_ignored_targets(to: str, weight: Tensor | None, shape: tuple[int, ...]) -> None:
    """An ignored target need not be a class; where it is one, an infinite value of that class does not count."""
    scores = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    target = {1: torch.tensor(2), 2: torch.arange(4), 3: torch.arange(12).reshape(4, 3) % 5}[len(shape)]
    for ignored in (-100, 1):
        given = target.masked_fill(target == 1, ignored)
        x = scores.index_fill(min(len(shape) - 1, 1), torch.tensor([1]), float("-inf")) if ignored == 1 else scores
        model = module(lambda _, x, t, ignored=ignored: functional.nll_loss(x, t, weight, ignore_index=ignored))
        graph, _ = to_opset(captured(model, x, given), to)
        assert all("nll_loss" not in node.op_type for node in graph.nodes)
        torch.testing.assert_close(IRExecutor(graph, {})(x, given), model(x, given))


def test_a_rule_of_a_back_end_that_fits_some_sizes_is_refused() -> None:
    """The operator is left only where its rule says so: the back end computes it wrongly elsewhere."""

    def by_parity(self: Tensor) -> Tensor:
        return self + self if self.shape[0] % 2 else self * 2 + 0

    def of_matrices(self: Tensor) -> Tensor:
        return NotImplemented if self.dim() < 2 else self + self

    def forward(self: nn.Module, x: Tensor) -> Tensor:
        return x.sinh()

    ir = captured(module(forward), torch.ones(3), dynamic_shapes={"x": {0: Dim("n", min=2, max=64)}})
    with pytest.raises(ConversionError, match=r"'aten.sinh.default'\) cannot be rewritten .* differently at different"):
        rewritten(ir, {"aten.sinh.default": by_parity})
    assert text(rewritten(ir, {"aten.sinh.default": of_matrices})) == text(ir)
    assert len(rewritten(ir.specialize(n=5), {"aten.sinh.default": by_parity}).nodes) == 1
