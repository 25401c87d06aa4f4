"""Specialisation: symbols replaced by numbers everywhere in a graph, without tracing again."""

import re
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim

from tests.proof import agrees, captured, module
from torch_ir import IR, ExecutionError, GraphError, IRExecutor, optimize
from torch_ir.errors import ExpressionError
from torch_ir.ir import FunctionRef, OpNode, TensorMeta
from torch_ir.ir.sizes.specialize import substitute
from torch_ir.ir.sizes.symbols import Symbol


def even(self: Any, x: Tensor) -> Tensor:
    return x.reshape(x.shape[0] // 2, 2) if x.shape[0] % 2 == 0 else x


def _rows(count: int) -> Tensor:
    return torch.randn(count, 4)


def sized(self: Any, x: Tensor) -> tuple[Tensor, int]:
    return self.layer(x).reshape(-1, 2), x.shape[0] * x.shape[1] + 1


SIZED = module(sized, layer=nn.Linear(4, 4))
BOTH = ({0: Dim("batch", min=1, max=16), 1: Dim("seq", min=1, max=32)},)


def test_specialize_makes_a_static_graph() -> None:
    """With every size chosen nothing symbolic is left, and the graph is the one captured at those sizes."""
    ir = captured(SIZED, torch.randn(3, 5, 4), dynamic_shapes=BOTH)
    chosen = ir.specialize(batch=2, seq=7)
    assert chosen.is_static
    assert chosen.constraints == []
    assert str(chosen) == str(captured(SIZED, torch.randn(2, 7, 4)))
    assert agrees(IR.from_json(chosen.to_json()), SIZED, torch.randn(2, 7, 4))
    assert not ir.is_static, "the graph itself stays as it is"
    with pytest.raises(ExecutionError, match=r"input 'x' has shape \[3, 7, 4\], the graph takes \[2, 7, 4\]"):
        IRExecutor(chosen, SIZED.state_dict())(torch.randn(3, 7, 4))


def test_specialize_one_size_of_two() -> None:
    """The other stays dynamic, in expressions with the chosen number."""
    ir = captured(SIZED, torch.randn(3, 5, 4), dynamic_shapes=BOTH).specialize(batch=2)
    assert ir.graph_inputs[0].shape == (2, "seq", 4)
    assert list(ir.symbols) == ["seq"]
    assert ir.graph_outputs[0].shape == ("4 * seq", 2)
    assert agrees(ir, SIZED, torch.randn(2, 9, 4))


def test_specialize_inside_functions() -> None:
    """The branches of a cond are specialised too."""
    model = module(lambda self, x: torch.cond(x.sum() > 0, lambda x: x * x.shape[0], lambda x: x - 1, (x,)))
    ir = captured(model, _rows(5), dynamic_shapes=({0: Dim("batch")},)).specialize(batch=3)
    assert [body.graph_inputs[0].shape for body in ir.functions.values()] == [(3, 4), (3, 4)]
    assert agrees(ir, model, torch.ones(3, 4))
    assert agrees(ir, model, -torch.ones(3, 4))


def test_specialize_settles_assertions() -> None:
    """An assertion on a chosen size is certain, one on the data stays."""

    def forward(self: Any, x: Tensor, count: Tensor) -> Tensor:
        n = count.item()
        torch._check(n <= x.shape[0])
        torch._check(n >= 0)
        return x[:n]

    ir = captured(module(forward), _rows(5), torch.tensor(3), dynamic_shapes=({0: Dim("rows")}, {}))
    chosen = ir.specialize(rows=4)
    assert [node["self"] for node in chosen.nodes if "assert" in node.op_type] == ["u0 >= 0", "u0 <= 4"]
    assert agrees(chosen, module(forward), _rows(4), torch.tensor(2))
    with pytest.raises(ExecutionError, match="u0 <= rows"):
        IRExecutor(chosen, {})(_rows(4), torch.tensor(5))


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"bach": 2}, "the graph has no size 'bach'; did you mean 'batch'?"),
        ({"batch": 17}, "batch = 17 is out of range: 1 <= batch <= 16"),
        ({"batch": True}, "batch = True is out of range"),
        ({"batch": 2.0}, "batch = 2.0 is out of range"),
        ({"u0": 2}, "'u0' is decided by the data"),
    ],
)
def test_sizes_that_cannot_be_chosen(sizes: dict[str, Any], message: str) -> None:
    model = module(lambda self, x: x.nonzero())
    ir = captured(model, torch.randn(3, 4), dynamic_shapes=({0: Dim("batch", min=1, max=16)},))
    with pytest.raises(GraphError, match=re.escape(message)):
        ir.specialize(**sizes)


def test_specialize_against_a_constraint() -> None:
    """A size that violates a constraint is rejected with the constraint."""
    ir = captured(module(even), torch.randn(8), dynamic_shapes=({0: Dim.AUTO},))
    assert ir.specialize(s0=6).is_static
    with pytest.raises(GraphError, match=r"the graph holds only where \(s0 % 2\) == 0, but s0 = 7"):
        ir.specialize(s0=7)


def test_the_side_of_a_condition_that_does_not_decide_is_not_evaluated() -> None:
    """`8 % s` has no value for s = 0, but is not asked for."""
    assert substitute("s == 0 or 8 % s == 0", {"s": 0}) is True
    assert substitute("s != 0 and 8 // s > n", {"s": 0}) is False
    assert substitute("s != 0 and 8 // s > n", {"s": 2}) == "4 > n"
    assert substitute("n == 0 or 8 % s == 0", {"s": 0}) == "(n == 0) or ((8 % 0) == 0)"
    assert substitute("s or 0 / 0", {"s": "t"}) == "t or (0 / 0)"
    for text in ("8 % s", "8 % s * n == n", "8 % s == 0 or n == 0", "s == 0 and 8 % s == 0"):
        with pytest.raises(ExpressionError, match="cannot evaluate '8 % 0'"):
            substitute(text, {"s": 0})


SQUEEZED = module(lambda self, x: x.squeeze(0) * 2)


def test_a_size_that_squeeze_would_drop_is_refused() -> None:
    """At batch 1 the model returns another number of dimensions than the graph declares."""
    ir = captured(SQUEEZED, _rows(3), dynamic_shapes=({0: Dim("batch", min=1, max=16)},))
    assert ir.specialize(batch=2).graph_outputs[0].shape == (2, 4)
    with pytest.raises(GraphError, match=r"would drop a dimension of size 1 .* capture the model at batch = 1 instead"):
        ir.specialize(batch=1)
    assert agrees(ir, SQUEEZED, _rows(1))


@pytest.mark.parametrize("level", ["clean", "full"])
def test_an_optimised_graph_refuses_a_size_that_squeeze_would_drop(level: str) -> None:
    ir = captured(SQUEEZED, _rows(3), dynamic_shapes=({0: Dim("batch", min=1, max=16)},))
    better, _ = optimize(ir, level)
    assert agrees(better, SQUEEZED, _rows(2))
    with pytest.raises(ExecutionError, match="holds only where batch != 1, but batch = 1"):
        IRExecutor(better, {})(_rows(1))
    wide = captured(SQUEEZED, _rows(3), dynamic_shapes=({0: Dim("batch", min=2, max=16)},))
    assert optimize(wide, level)[0].constraints == []


def test_an_optimised_graph_asserts_a_size_that_the_data_decide() -> None:
    model = module(lambda self, x: (x.nonzero()[:, :1] * 2).squeeze() + x.nonzero()[:, :1].squeeze())
    better, _ = optimize(captured(model, _rows(3)), "clean")
    assert agrees(better, model, torch.ones(3, 4))
    with pytest.raises(ExecutionError, match="keeps all dimensions, so u0 != 1"):
        IRExecutor(better, {})(torch.eye(3, 4)[:1].repeat(3, 1) * torch.tensor([[1.0], [0.0], [0.0]]))


def test_a_function_keeps_a_size_of_its_own() -> None:
    """A size of the same name that a function reads from its own results is another one."""
    given, places, count = (
        TensorMeta("given", (8,), "float32"),
        TensorMeta("places", ("batch", 1), "int64"),
        TensorMeta("count", (), "int64"),
    )
    nodes = [
        OpNode("places", "aten.nonzero.default", [given], [places], {}, args=["self"]),
        OpNode("count", "aten.sum.default", [places], [count], {"dtype": None}, args=["self"]),
    ]
    body = IR(nodes, [given], [count], symbols=[Symbol("batch", 0, 8, places, 0)])
    x, y, row, made = (
        TensorMeta("x", ("batch", 8), "float32"),
        TensorMeta("y", (8,), "float32"),
        TensorMeta("row", ("batch", 8), "float32"),
        TensorMeta("made", (), "int64"),
    )
    calls = [
        OpNode("row", "aten.relu.default", [x], [row], {}, args=["self"]),
        OpNode("made", "call", [y], [made], {"function": FunctionRef("body")}, args=["given"]),
    ]
    ir = IR(calls, [x, y], [row, made], functions={"body": body}, symbols=[Symbol("batch", 1, 16, x, 0)]).check()
    chosen = ir.specialize(batch=2)
    assert list(chosen.functions["body"].symbols) == ["batch"]
    values = torch.randn(2, 8), torch.ones(8)
    assert [value.tolist() for value in IRExecutor(chosen, {})(*values)] == [values[0].relu().tolist(), 28]


def test_a_function_may_admit_fewer_sizes() -> None:
    model = module(lambda self, x: torch.cond(x.sum() > 0, lambda x: x * x.shape[0], lambda x: x - 1, (x,)))
    ir = captured(model, _rows(5), dynamic_shapes=({0: Dim("batch", min=1, max=16)},))
    for body in ir.functions.values():
        for symbol in body.symbols.values():
            symbol.max = 4
    with pytest.raises(GraphError, match=r"function 'true_graph_0': batch = 5 is out of range: batch <= 4"):
        ir.specialize(batch=5)
