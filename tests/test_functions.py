"""Functions of a graph: several nodes outlined into one call, the same results, and inlined again."""

import pytest
import torch

from tests.graphs import tensor
from torch_ir import IR, GraphError, IRExecutor, OpNode, TensorMeta
from torch_ir.ir import FunctionRef, Origin, Param, TensorData, share_functions
from torch_ir.ir.regroup.functions import inline, inline_all, outline


def chain() -> IR:
    """neg, then relu and exp of it, then their sum."""
    x, neg, relu, exp, add = (TensorMeta(name, (2, 3), "float32") for name in ("x", "neg", "relu", "exp", "add"))
    return IR(
        [
            OpNode("neg", "aten.neg.default", [x], [neg], args=["self"]),
            OpNode("relu", "aten.relu.default", [neg], [relu], args=["self"]),
            OpNode("exp", "aten.exp.default", [neg], [exp], args=["self"]),
            OpNode("add", "aten.add.Tensor", [relu, exp], [add], {"alpha": 1}, args=["self", "other"]),
        ],
        [x],
        [add],
    ).check()


def computed(ir: IR) -> torch.Tensor:
    (result,) = IRExecutor(ir.check(), {}).execute((torch.linspace(-1, 1, 6).reshape(2, 3),))
    assert isinstance(result, torch.Tensor)
    return result


def test_outlined_nodes_become_one_call() -> None:
    """The call has the nodes' inputs and used outputs, and its origins are all of them."""
    ir = chain()
    call = outline(ir, [ir.node("relu"), ir.node("exp"), ir.node("add")], "tail")
    assert call.origins == ("relu", "exp", "add")
    assert str(ir) == (
        "function tail(neg: float32[2, 3]) {\n"
        "  relu: float32[2, 3] = aten.relu.default(self=neg)\n"
        "  exp: float32[2, 3] = aten.exp.default(self=neg)\n"
        "  add: float32[2, 3] = aten.add.Tensor(self=relu, other=exp, alpha=1)\n"
        "  return add\n"
        "}\n\n"
        "graph(x: float32[2, 3]) {\n"
        "  uses @tail\n"
        "  neg: float32[2, 3] = aten.neg.default(self=x)\n"
        "  add: float32[2, 3] = call(neg=neg, function=@tail)\n"
        "  return add,\n"
        "}\n"
    )


def test_outlining_keeps_the_meaning_and_survives_the_file() -> None:
    ir = chain()
    expected = computed(ir)
    outline(ir, ir.nodes[:2], "head", op_type="fused.neg_relu")
    assert torch.equal(computed(ir), expected)
    assert torch.equal(computed(IR.from_json(ir.to_json())), expected)


def test_readers_between_outlined_nodes_move_behind_the_call() -> None:
    """exp reads neg and precedes add: if neg is in a call that ends at relu, exp must follow the call."""
    ir = chain()
    ir.nodes = [ir.node(name) for name in ("neg", "exp", "relu", "add")]
    expected = computed(ir)
    outline(ir, [ir.node("neg"), ir.node("relu")], "pair")
    assert [node.name for node in ir.nodes] == ["relu", "exp", "add"]
    assert torch.equal(computed(ir), expected)


def test_inline_is_the_way_back() -> None:
    ir = chain()
    text, expected = str(ir), computed(ir)
    call = outline(ir, ir.nodes[1:], "tail")
    inline(ir, call)
    assert str(ir.check()) == text
    assert torch.equal(computed(ir), expected)


def test_nested_calls_go_inline_level_by_level() -> None:
    ir = chain()
    text = str(ir)
    outline(ir, ir.nodes[1:3], "inner")
    outline(ir, ir.nodes[1:], "outer")
    assert list(ir.functions) == ["outer"]
    assert list(ir.functions["outer"].functions) == ["inner"]
    assert inline_all(ir) == 2
    assert str(ir.check()) == text


def test_one_function_called_twice_keeps_names_apart() -> None:
    """Putting the second call inline must not reuse the names of the first."""
    ir = chain()
    outline(ir, [ir.node("neg")], "flip")
    again = TensorMeta("again", (2, 3), "float32")
    second = OpNode("again", "call", [ir.node("add").output], [again], dict(ir.node("neg").attrs), args=["x"])
    ir.nodes.append(second)
    ir.graph_outputs = [again]
    expected = computed(ir)
    assert inline_all(ir) == 2
    assert [node.name for node in ir.nodes] == ["neg", "relu", "exp", "add", "again"]
    assert torch.equal(computed(ir), expected)


def test_nodes_with_a_way_out_and_back_in_cannot_be_outlined() -> None:
    ir = chain()
    with pytest.raises(GraphError, match=r"OpNode\('add'.*reads TensorMeta\('relu'"):
        outline(ir, [ir.node("neg"), ir.node("exp"), ir.node("add")], "broken")
    assert str(ir) == str(chain())


def test_a_file_may_hold_several_entry_points_over_one_weight_table() -> None:
    """A function may have its own inputs and weights, such as decode. Keys are shared."""
    ir = chain()
    x, y = TensorMeta("x", (2, 3), "float32"), TensorMeta("mul", (2, 3), "float32")
    scale = TensorMeta("p_scale", (3,), "float32", param=Param(("scale",)))
    ir.functions["scaled"] = IR(
        [OpNode("mul", "aten.mul.Tensor", [x, scale], [y], args=["self", "other"])], [x], [y], params=[scale]
    )
    loaded = IR.from_json(ir.check().to_json())
    entry = IRExecutor(loaded.functions["scaled"], {"scale": torch.tensor([1.0, 2.0, 3.0])})
    assert torch.equal(entry(torch.ones(2, 3))[0], torch.tensor([[1.0, 2.0, 3.0]] * 2))
    assert torch.equal(computed(loaded), computed(chain()))


def test_a_body_tells_origins_as_seen_from_its_call() -> None:
    """So that one body can serve the same block elsewhere; put inline, its nodes are where that call is."""
    ir = chain()
    for node, module in zip(ir.nodes, ["a.0.fc", "a.0", "a.0.act", "head"], strict=True):
        node.origin = Origin(module, 2, "Some", "model.py:3", ("a@1",))
    call = outline(ir, ir.nodes[:3], "block")
    assert (call.origin.module, call.origin.outer) == ("a.0", ("a@1",))
    assert [node.origin.module for node in ir.functions["block"].nodes] == ["fc", "", "act"]
    call.origin = Origin("b.1", 0, "Some", "model.py:7")
    assert [(node.origin.module, node.origin.source) for node in inline(ir, call)] == [
        ("b.1.fc", "model.py:7"),
        ("b.1", "model.py:7"),
        ("b.1.act", "model.py:7"),
    ]


def test_nodes_of_two_calls_of_a_module_are_outlined_as_those_of_the_module_around() -> None:
    """Calls inside a body are counted from the first, never below."""
    x, first, second = (TensorMeta(name, (2, 3), "float32") for name in ("x", "neg", "neg_1"))
    nodes = [
        OpNode("neg", "aten.neg.default", [x], [first], args=["self"], origin=Origin("net.branch", 0, "Branch")),
        OpNode("neg_1", "aten.neg.default", [first], [second], args=["self"], origin=Origin("net.branch", 1, "Branch")),
    ]
    ir = IR(nodes, [x], [second]).check()
    call = outline(ir, list(ir.nodes), "both")
    assert call.origin.module == "net"
    assert [node.origin.call for node in ir.check().functions["both"].nodes] == [0, 1]
    inline(ir, call)
    assert [(node.origin.module, node.origin.call) for node in ir.nodes] == [("net.branch", 0), ("net.branch", 1)]


def test_functions_with_different_constants_are_not_shared() -> None:
    """The values of a body's own constants are a part of what it computes, and so are functions in its attributes."""

    def scaled(number: float) -> IR:
        a, made = tensor("a", 2), tensor("y", 2)
        values = TensorData.from_numbers([number, number], "float32")
        c = TensorMeta("c", (2,), "float32", param=Param(("c",), "constant", values))
        return IR([OpNode("y", "aten.mul.Tensor", [a, c], [made], args=["self", "other"])], [a], [made], params=[c])

    def called(first: IR, second: IR) -> IR:
        x, y, z = tensor("x", 2), tensor("y", 2), tensor("z", 2)
        nodes = [
            OpNode("y", "call", [x], [y], {"function": FunctionRef("f")}, args=["a"]),
            OpNode("z", "call", [y], [z], {"function": FunctionRef("g")}, args=["a"]),
        ]
        return IR(nodes, [x], [z], functions={"f": first, "g": second}).check()

    def steered(inner: IR) -> IR:
        a, made = tensor("a", 2), tensor("y", 2)
        node = OpNode("y", "my.op", [a], [made], {"how": {"body": FunctionRef("inner")}}, args=["a"])
        return IR([node], [a], [made], functions={"inner": inner})

    assert share_functions(called(scaled(1.0), scaled(1.0))) == 1
    assert share_functions(called(scaled(1.0), scaled(2.0))) == 0
    assert share_functions(called(steered(scaled(1.0)), steered(scaled(1.0)))) == 1
    assert share_functions(called(steered(scaled(1.0)), steered(scaled(2.0)))) == 0
