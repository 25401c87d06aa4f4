"""The text form: the exact text of given graphs."""

from textwrap import dedent

from tests.graphs import chain, everything, mlp, tensor, weight
from torch_ir.ir import IR, Branch, Dtype, Expr, FunctionRef, OpNode, Param, Slot, Symbol, TensorMeta
from torch_ir.ir.text.printer import print_node, print_value


def test_the_documented_model() -> None:
    """Weights first, then a line per node with its arguments by name, then the outputs."""
    assert str(mlp()) == dedent("""\
        graph SimpleMLP(x: float32[1, 4]) {
          param p_fc1_weight: float32[8, 4] = "fc1.weight"
          param p_fc1_bias: float32[8] = "fc1.bias"
          param p_fc2_weight: float32[2, 8] = "fc2.weight"
          param p_fc2_bias: float32[2] = "fc2.bias"
          linear: float32[1, 8] = aten.linear.default(input=x, weight=p_fc1_weight, bias=p_fc1_bias)
          relu: float32[1, 8] = aten.relu.default(self=linear)
          linear_1: float32[1, 2] = aten.linear.default(input=relu, weight=p_fc2_weight, bias=p_fc2_bias)
          return linear_1,
        }
        """)


def test_a_graph_without_a_name_and_a_node_without_outputs() -> None:
    """Nothing is printed for absent parts; a node without outputs prints its name."""
    x = tensor("x")
    ir = IR([OpNode("check", "aten._assert_async.default", [x], [], args=["self"])], [x], [x])
    assert str(ir) == dedent("""\
        graph(x: float32[]) {
          aten._assert_async.default(self=x) as check
          return x,
        }
        """)


def test_symbols_and_constraints() -> None:
    """Each size with its range and the place that it is read off; further conditions as they are written."""
    x, count = tensor("x", "batch", "2*seq"), tensor("nonzero", "found", 1, dtype="int64")
    node = OpNode("nonzero", "aten.nonzero.default", [x], [count], args=["self"])
    symbols = [
        Symbol("batch", 1, 64, x, 0),
        Symbol("seq", 2, None, x, 1),
        Symbol("found", None, None, count, 0),
        Symbol("free", 0, 5),
    ]
    ir = IR([node], [x], [count], symbols=symbols, constraints=["seq % 2 == 0", "batch != 4"], model_name="M")
    assert str(ir) == dedent("""\
        graph M(x: float32[batch, 2*seq]) {
          symbol 1 <= batch <= 64 from x[0]
          symbol 2 <= seq from x[1]
          symbol found from nonzero[0]
          symbol 0 <= free <= 5
          require seq % 2 == 0
          require batch != 4
          nonzero: int64[found, 1] = aten.nonzero.default(self=x)
          return nonzero,
        }
        """)


def test_kinds_of_weights_ties_and_mutations() -> None:
    """A weight has its kind and all its keys; a mutation is printed before the return."""
    x, state = tensor("x", 2), weight("b_state", 2, keys=("state",), kind="buffer")
    tied = weight("p_w", 2, keys=("embed.weight", "head.weight"))
    fixed = weight("c_k", 2, keys=("k",), kind="constant")
    passing = weight("b_tmp", 2, keys=("tmp",), kind="temporary")
    added = tensor("add", 2)
    node = OpNode("add", "aten.add.Tensor", [state, x], [added], {"alpha": 1}, args=["self", "other"])
    ir = IR([node], [x], [added], params=[tied, state, passing, fixed], mutations=[(state, added)])
    assert str(ir) == dedent("""\
        graph(x: float32[2]) {
          param p_w: float32[2] = "embed.weight" = "head.weight"
          buffer b_state: float32[2] = "state"
          temporary b_tmp: float32[2] = "tmp"
          constant c_k: float32[2] = "k"
          add: float32[2] = aten.add.Tensor(self=b_state, other=x, alpha=1)
          b_state := add
          return add,
        }
        """)


def test_functions_come_first_and_inner_ones_before_outer_ones() -> None:
    """A nested function is printed too, under both names; `uses` names its callers."""
    text = str(everything())
    functions, _, graph = text.partition("graph ")
    assert functions == dedent("""\
        function body.inner(y: float32[batch]) {
          relu: float32[batch] = aten.relu.default(self=y)
          return relu
        }

        function body(value: float32[batch]) {
          uses @inner
          neg: float32[batch] = aten.neg.default(self=value)
          call: float32[batch] = call(y=neg, function=@inner)
          return call
        }

        """)
    assert "  uses @body\n" in graph
    assert "  call: float32[batch] = call(value=max_1_0, function=@body)\n" in graph


def test_nested_outputs() -> None:
    """Outputs are printed in the model's nesting: dicts, lists, objects, numbers and None."""
    last = str(everything()).splitlines()[-2]
    assert last == (
        "  return {pair: [max_1_0, max_1_1, 3, {batch}], 1: cat, (0, 'key'): model.Output(logits: call, loss: None)}"
    )


def test_returns_of_several_of_one_and_of_none() -> None:
    """As in Python: a tuple needs no brackets, and a single tensor is not a tuple; slots give another order."""
    ir = chain("aten.neg.default")
    x, neg = ir.graph_inputs[0], ir.nodes[0].output
    ir.graph_outputs, ir.output_tree = [neg, x], Branch("tuple", (Slot(0), Slot(1)))
    assert str(ir).splitlines()[-2] == "  return neg, x"
    ir.output_tree = Branch("tuple", (Slot(1), Branch("tuple", (Slot(0),))))
    assert str(ir).splitlines()[-2] == "  return (x, (neg,)) slots [1, 0]"
    ir.graph_outputs, ir.output_tree = [neg], Slot(0)
    assert str(ir).splitlines()[-2] == "  return neg"
    ir.output_tree = Branch("tuple", (Slot(0),))
    assert str(ir).splitlines()[-2] == "  return neg,"
    ir.graph_outputs, ir.output_tree = [], None
    assert str(ir).splitlines()[-2] == "  return None"


def test_list_arguments_and_several_outputs() -> None:
    """Elements of a list are printed under their numbers; several outputs stand before one equals sign."""
    a, b = tensor("a", 2, 4), tensor("b", 2, 4)
    node = OpNode("cat", "aten.cat.default", [a, b], [tensor("cat", 4, 4)], {"dim": 0}, args=["tensors.0", "tensors.1"])
    assert print_node(node) == "cat: float32[4, 4] = aten.cat.default(tensors.0=a, tensors.1=b, dim=0)"
    split = OpNode(
        "split", "aten.split.Tensor", [a], [tensor("split_0", 2, 2), tensor("split_1", 2, 2)], {"split_size": 2},
        args=["self"],
    )  # fmt: skip
    assert print_node(split) == (
        "split_0: float32[2, 2], split_1: float32[2, 2] = aten.split.Tensor(self=a, split_size=2)"
    )


def test_without_schema_names_arguments_are_numbered() -> None:
    """Nodes built by the documented constructor are printed with positional arguments."""
    node = OpNode("relu", "aten.relu.default", [tensor("x", 2)], [tensor("relu", 2)])
    assert print_node(node) == "relu: float32[2] = aten.relu.default(0=x)"


def test_values() -> None:
    """Strings are quoted, typed names are bare, sizes are in braces, functions have an at sign."""
    values = [None, True, 1, -0.5, float("inf"), 1 + 2j, "text", [1, ["a"]], (1, 2), Dtype("bfloat16"), Expr("2*n")]
    assert [print_value(value) for value in values] == [
        "None", "True", "1", "-0.5", "inf", "(1+2j)", "'text'", "[1, ['a']]", "[1, 2]", "bfloat16", "{2*n}",
    ]  # fmt: skip
    assert print_value([FunctionRef("body"), "two\nlines"]) == r"[@body, 'two\nlines']"


def test_a_broken_graph_can_be_looked_at() -> None:
    """Printing is used to find errors, so it does not require a valid graph."""
    ir = mlp()
    ir.params[0].param = None
    ir.nodes[1].inputs = (tensor("nobody", 1, 8),)
    ir.nodes[2].inputs = ()
    lines = str(ir).splitlines()
    assert lines[1] == "  param p_fc1_weight: float32[8, 4]"
    assert "  relu: float32[1, 8] = aten.relu.default(self=nobody)" in lines
    assert "  linear_1: float32[1, 2] = aten.linear.default()" in lines


def test_equal_graphs_print_equally() -> None:
    """The text depends on the graph's content, not on its history."""
    for ir in (mlp(), everything()):
        assert str(IR.from_json(ir.to_json())) == str(ir) == str(ir.clone())
    assert str(IR([], [_plain()], [_plain()], params=[_weight()])) == str(
        IR([], [_plain()], [_plain()], [TensorMeta("w", (2,), "float32")], {"p_w": "w"})
    )


def _plain() -> TensorMeta:
    return TensorMeta("x", (2,), "float32")


def _weight() -> TensorMeta:
    return TensorMeta("p_w", (2,), "float32", param=Param(("w",)))
