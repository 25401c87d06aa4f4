"""Optimising functions: repeated blocks are optimised once, weight computations are hoisted, entry points are kept."""

import pytest
import torch
from torch import Tensor, nn

import torch_ir
from tests.proof import captured
from tests.rewriting import lines, optimized, text
from torch_ir import IR, Builder, OpNode, TensorMeta, diff, op, optimize, rule
from torch_ir.passes.random_check import prove


class Attention(nn.Module):
    """Query, key and value read the same tensor; the product is written out."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(width, width, bias=False) for _ in range(3))

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        scores = self.q(x) @ self.k(x).transpose(1, 2) / 8**0.5
        return (scores + mask).softmax(-1) @ self.v(x)


class Block(nn.Module):
    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.attention = Attention(width)
        self.drop = nn.Dropout()

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        return x + self.drop(self.attention(self.norm(x), mask))


class Tower(nn.Module):
    def __init__(self, depth: int = 4) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(depth))

    def forward(self, x: Tensor) -> Tensor:
        mask = torch.full((5, 5), float("-inf")).triu(1)
        for block in self.blocks:
            x = block(x, mask)
        return x


@pytest.fixture(scope="module")
def flat() -> IR:
    return captured(Tower().eval(), torch.randn(2, 5, 8))


@pytest.mark.parametrize("level", ["clean", "basic", "full"])
def test_block_by_block_gives_the_same_graph(flat: IR, level: str) -> None:
    """Optimising the body once has the same result as optimising every block."""
    once, _ = optimize(flat, level, by_block=True)
    each, _ = optimize(flat, level, by_block=False)
    assert str(diff(once, each)) == "the graphs are equal"
    assert prove(flat, once).is_valid


def test_origins_are_those_of_the_block(flat: IR) -> None:
    """Origins of a node of the last block are in the last block, although the first was rewritten."""
    once, _ = optimize(flat, "full", by_block=True)
    home = {node.name: node.origin.module for node in flat.nodes}
    for node in once.nodes:
        if node.origin.module.startswith("blocks."):
            block = ".".join(node.origin.module.split(".")[:2])
            assert {".".join(home[name].split(".")[:2]) for name in node.origins} <= {block, ""}


def test_the_function_form_stays_one(flat: IR) -> None:
    """A graph with calls keeps them, and its products are merged in the shared body."""
    folded = flat.fold_blocks()
    better, _ = optimize(folded, "full", verify=True)
    calls = [node for node in better.nodes if node.op_type.endswith("Block")]
    body = better.functions[calls[0].attrs["function"]]
    assert len(calls) == 4
    assert [node.op_type for node in body.nodes].count("aten.linear.default") == 1
    assert prove(flat, better).is_valid
    assert prove(flat, better.at_level("aten")).is_valid


@rule(op("aten.linear.default", weight="w", input="x", bias="b"))
def as_product(g: Builder, node: OpNode, w: TensorMeta, x: TensorMeta, b: TensorMeta) -> TensorMeta:
    """linear(x, w, b)  ->  addmm(b, x, t(w))"""
    product: TensorMeta = g.op("aten.addmm.default", self=b, mat1=x, mat2=g.op("aten.t.default", self=w))
    return product


def test_weights_leave_the_body() -> None:
    """Nodes of a body that depend only on weights are computed before each call."""
    layers = [nn.Sequential(nn.Linear(2, 2), nn.ReLU()) for _ in range(2)]
    ir = captured(nn.Sequential(*layers).eval(), torch.randn(1, 2)).fold_blocks()
    after = optimized(ir, [as_product, "hoist-from-functions", "hoist-prologue"])
    assert text(after) == lines("""
        function Sequential(input: float32[1, 2], 0_bias: float32[2], t_once: float32[2, 2] strides [1, 2]) {
          addmm: float32[1, 2] = aten.addmm.default(self=0_bias, mat1=input, mat2=t_once, beta=1, alpha=1)
          relu: float32[1, 2] = aten.relu.default(self=addmm)
          return relu
        }

        graph Sequential(input: float32[1, 2]) {
          param p_0_0_weight: float32[2, 2] = "0.0.weight"
          param p_0_0_bias: float32[2] = "0.0.bias"
          param p_1_0_weight: float32[2, 2] = "1.0.weight"
          param p_1_0_bias: float32[2] = "1.0.bias"
          uses @Sequential
          t: float32[2, 2] strides [1, 2] = aten.t.default(self=p_0_0_weight)
          t_1: float32[2, 2] strides [1, 2] = aten.t.default(self=p_1_0_weight)
          relu: float32[1, 2] = torch.nn.Sequential(input=input, 0_bias=p_0_0_bias, t_once=t, function=@Sequential) as `0`
          relu_1: float32[1, 2] = torch.nn.Sequential(input=relu, 0_bias=p_1_0_bias, t_once=t_1, function=@Sequential) as `1`
          return relu_1
        }
    """)  # noqa: E501  # the text of a graph


def test_a_call_on_weights_leaves_the_body_with_its_function() -> None:
    """A function of the body moves with the call, under a free name, as the graph may have one of that name."""
    ir = IR.parse("""
        function block.scaled(w: float32[2]) {
          mul: float32[2] = aten.mul.Tensor(self=w, other=3)
          return mul
        }

        function block(x: float32[2], w: float32[2]) {
          uses @scaled
          twice: float32[2] = call(w=w, function=@scaled)
          add: float32[2] = aten.add.Tensor(self=x, other=twice, alpha=1)
          return add
        }

        function scaled(x: float32[2]) {
          neg: float32[2] = aten.neg.default(self=x)
          return neg
        }

        graph(x: float32[2]) {
          param w: float32[2] = "w"
          uses @block
          uses @scaled
          first: float32[2] = call(x=x, w=w, function=@block)
          last: float32[2] = call(x=first, function=@scaled)
          return last
        }
    """)
    after = optimized(ir, ["hoist-from-functions"])
    assert [node.attrs["function"] for node in after.nodes] == ["scaled_1", "block", "scaled"]
    assert not after.functions["block"].functions


def test_entry_points_stay() -> None:
    """The decode graph of a language model has no callers, is optimised too, and is kept."""
    transformers = pytest.importorskip("transformers", reason="torch-ir[transformers] is not installed")
    from torch_ir.llm import extract_llm

    config = transformers.LlamaConfig(
        num_hidden_layers=2, hidden_size=32, intermediate_size=64, num_attention_heads=4, num_key_value_heads=2,
        vocab_size=50,
    )  # fmt: skip
    with torch_ir.meta_init():
        model = transformers.LlamaForCausalLM(config).eval()
    ir = extract_llm(model)
    better, report = optimize(ir, "full", verify=True)
    assert report.proof is not None
    assert report.proof.is_valid
    assert better.functions.keys() >= {"decode"}
    assert len(better.functions["decode"].nodes) < len(ir.functions["decode"].nodes) / 2
