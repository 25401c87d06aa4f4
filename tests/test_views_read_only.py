"""Computed members of a graph are read-only; links are checked both ways; graphs can be copied."""

import copy
import inspect
import pickle
from typing import Any

import pytest

from tests.graphs import mlp, tensor
from torch_ir import IR, OpNode, TensorMeta
from torch_ir.errors import GraphError, ReadOnlyError
from torch_ir.ir import FunctionRef, Param, Symbol, TensorData
from torch_ir.ir.graph.read_only import DictView, ListView

LIST_CHANGES = {
    "append": lambda view: view.append(1),
    "extend": lambda view: view.extend([1]),
    "insert": lambda view: view.insert(0, 1),
    "remove": lambda view: view.remove(view[0]),
    "pop": lambda view: view.pop(),
    "clear": lambda view: view.clear(),
    "sort": lambda view: view.sort(key=str),
    "reverse": lambda view: view.reverse(),
    "set item": lambda view: view.__setitem__(0, 1),
    "set slice": lambda view: view.__setitem__(slice(None), []),
    "delete": lambda view: view.__delitem__(0),
    "multiply": lambda view: view.__imul__(2),
}
DICT_CHANGES = {
    "set": lambda view: view.__setitem__("k", 1),
    "delete": lambda view: view.__delitem__("k"),
    "pop": lambda view: view.pop("k", None),
    "popitem": lambda view: view.popitem(),
    "clear": lambda view: view.clear(),
    "update": lambda view: view.update(k=1),
    "setdefault": lambda view: view.setdefault("k", 1),
    "merge": lambda view: view.__ior__({"k": 1}),
}


def graph() -> IR:
    """A graph with everything: a list argument, tied weights, a constant, a mutation, a symbol and a function."""
    x = TensorMeta("x", ("n", 3), "float32")
    w = TensorMeta("w", (3,), "float32", param=Param(("a.w", "b.w")))
    c = TensorMeta("c", (1,), "float32", param=Param(("c",), "constant", TensorData((1,), "float32", b"\0" * 4)))
    add = OpNode("add", "aten.add.Tensor", [x, w], [TensorMeta("add", ("n", 3), "float32")], {"alpha": 1},
                 args=["self", "other"])  # fmt: skip
    inner = TensorMeta("inner", ("n", 3), "float32")
    body = IR([OpNode("neg", "aten.neg.default", [inner], [TensorMeta("neg", ("n", 3), "float32")], args=["self"])],
              [inner], [TensorMeta("neg", ("n", 3), "float32")])  # fmt: skip
    call = OpNode("call", "fused.neg", [add.output], [TensorMeta("call", ("n", 3), "float32")],
                  {"function": FunctionRef("neg")}, args=["inner"])  # fmt: skip
    cat = OpNode("cat", "aten.cat.default", [call.output, x], [TensorMeta("cat", ("2*n", 3), "float32")], {"dim": 0},
                 args=["tensors.0", "tensors.1"])  # fmt: skip
    return IR(
        [add, call, cat], [x], [cat.output], params=[w, c], mutations=[(x, add.output)], functions={"neg": body},
        symbols=[Symbol("n", 1, 8, x, 0)], extensions={"mine": {"list": [1]}},
    ).check()  # fmt: skip


def computed(thing: Any) -> dict[str, Any]:
    """The properties of an object that return a new list or dict each time."""
    names = [name for name, value in inspect.getmembers(type(thing)) if isinstance(value, property)]
    values = {name: getattr(thing, name) for name in names if name != "output"}
    return {
        name: value
        for name, value in values.items()
        if isinstance(value, (list, dict)) and getattr(thing, name) is not value
    }


def views() -> dict[str, Any]:
    ir = graph()
    found = {"IR": ir, "OpNode": ir.nodes[2], "TensorMeta": ir.graph_inputs[0], "Symbol": ir.symbols["n"]}
    named = {f"{kind}.{name}": value for kind, thing in found.items() for name, value in computed(thing).items()}
    return {**named, 'OpNode["tensors"]': ir.nodes[2]["tensors"], "OpNode.elements": ir.nodes[2].elements("tensors")}


def test_these_are_all_views() -> None:
    """A new property that returns a fresh list or dict has to be one of them."""
    assert sorted(views()) == [
        "IR.constants", "IR.graph_outputs", "IR.mutations", "IR.tied_weights", "IR.weight_name_mapping", "IR.weights",
        "OpNode.elements", 'OpNode["tensors"]', "TensorMeta.consumers",
    ]  # fmt: skip


@pytest.mark.parametrize("name", views())
def test_a_view_refuses_every_change(name: str) -> None:
    """The error says what to do instead; the value is unchanged."""
    view = views()[name]
    before = copy.copy(view)
    changes = LIST_CHANGES if isinstance(view, list) else DICT_CHANGES
    for change in changes.values():
        with pytest.raises(ReadOnlyError, match=r"a change of it would be lost; (assign|change) "):
            change(view)
    assert view == before
    assert len(view)


@pytest.mark.parametrize(("view", "plain"), [(ListView([1], ""), list), (DictView({1: 2}, ""), dict)])
def test_copies_of_views_are_plain(view: Any, plain: type) -> None:
    """A copy of a view can be changed."""
    for made in (copy.copy(view), copy.deepcopy(view), pickle.loads(pickle.dumps(view)), view.copy(), plain(view)):
        assert type(made) is plain
        assert made == view


def test_every_method_that_changes_a_list_or_dict_is_refused() -> None:
    """None is inherited; a later Python may have more."""
    for view, plain, harmless in [
        (ListView, list, {"copy", "count", "index"}),
        (DictView, dict, {"copy", "get", "items", "keys", "values", "fromkeys"}),
    ]:
        names = {name for name in vars(plain) if not name.startswith("__")} - harmless
        assert all(name in vars(view) for name in names)


def test_what_can_be_assigned_can_be_added_to() -> None:
    """`+=` assigns its result."""
    ir = graph()
    ir.graph_outputs += [ir.nodes[0].output]
    ir.mutations += []
    assert [one.name for one in ir.graph_outputs] == ["cat", "add"]
    assert ir.nodes[0].output.consumers.count(ir.returns) == 2
    with pytest.raises(ReadOnlyError, match=r"change ir\.params"):
        ir.weights += []  # type: ignore[misc]


@pytest.mark.parametrize("name", ["graph_output", "node", "outputs", "weight"])
def test_a_graph_has_no_other_attributes(name: str) -> None:
    """A mistyped name is an error."""
    with pytest.raises(AttributeError):
        setattr(graph(), name, [])
    with pytest.raises(AttributeError):
        graph().symbols["n"].maximum = 3  # type: ignore[attr-defined]


# -- links ------------------------------------------------------------------------------------------------------------


def test_a_node_that_is_removed_must_let_go_of_what_it_reads() -> None:
    """A reader that is not in the graph would keep its producers alive, and patterns from matching."""
    ir = graph()
    cat = ir.nodes[2]
    ir.graph_outputs = [ir.nodes[1].output]
    ir.nodes.remove(cat)
    with pytest.raises(GraphError, match=r"lists OpNode\('cat'.* as a consumer, which is not in the graph") as told:
        ir.check()
    assert (told.value.rule, told.value.node) == ("R7", "cat")
    cat.inputs = ()
    ir.check()


def test_a_tensor_belongs_to_one_graph() -> None:
    """The readers of another graph would be counted, too."""
    ir = graph()
    IR([], ir.graph_inputs, ir.graph_inputs)
    with pytest.raises(GraphError, match=r"lists OpNode\('return'.*not in the graph"):
        ir.check()


def test_a_removed_producer_does_not_stay_behind_an_input() -> None:
    """A tensor that a node produced and that is now an input must not have a producer."""
    ir = graph()
    add = ir.nodes.pop(0)
    add.inputs = ()
    ir.graph_inputs.append(add.output)
    with pytest.raises(GraphError, match="but has the producer"):
        ir.check()


def test_a_reader_that_is_counted_too_often_is_found() -> None:
    ir = graph()
    ir.graph_inputs[0]._uses[ir.nodes[0]] += 1
    with pytest.raises(GraphError, match="as a consumer 2 times, but is read 1 times"):
        ir.check()


# -- copies -----------------------------------------------------------------------------------------------------------


def chain(length: int) -> IR:
    x = made = tensor("x", 2)
    nodes = []
    for number in range(length):
        nodes.append(
            OpNode(f"relu_{number}", "aten.relu.default", [made], [tensor(f"relu_{number}", 2)], args=["self"])
        )
        made = nodes[-1].output
    return IR(nodes, [x], [made])


WAYS = {
    "deepcopy": copy.deepcopy,
    "copy": copy.copy,
    "pickle": lambda thing: pickle.loads(pickle.dumps(thing)),
    "pickle 2": lambda thing: pickle.loads(pickle.dumps(thing, 2)),
}


@pytest.mark.parametrize("way", WAYS)
def test_a_copy_is_equal_and_shares_nothing(way: str) -> None:
    """Functions, extensions, constants, symbols and mutations included."""
    ir = graph()
    before = ir.to_json()
    again = WAYS[way](ir)
    assert type(again) is IR
    assert again.check().to_json() == ir.check().to_json() == before
    again.nodes[0].attrs["alpha"] = 2
    again.extensions["mine"]["list"].append(2)
    again.functions["neg"].nodes.clear()
    again.symbols["n"].max = 9
    again.graph_inputs[0].name = "y"
    assert ir.check().to_json() == before


@pytest.mark.parametrize("length", [5_000, pytest.param(50_000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("way", ["deepcopy", "pickle"])
def test_long_chains_are_copied(way: str, length: int) -> None:
    """No depth of recursion depends on the graph."""
    again = WAYS[way](chain(length))
    assert len(again.check().nodes) == length
    assert again.nodes[-1].inputs[0].producer is again.nodes[-2]


@pytest.mark.parametrize("way", ["deepcopy", "pickle"])
def test_what_is_shared_stays_shared(way: str) -> None:
    """A node or tensor that is copied together with its graph is that of the copy, in any order."""
    ir = graph()
    node, again, read = WAYS[way]((ir.nodes[2], ir, ir.graph_inputs[0]))
    assert again.check().nodes[2] is node
    assert again.graph_inputs[0] is read
    assert set(read.consumers) == {again.nodes[0], node}


def test_a_node_alone_is_copied_with_its_tensors() -> None:
    """They do not lead to the rest of the graph."""
    ir = graph()
    node = copy.deepcopy(ir.nodes[2])
    assert node.to_dict()["attrs"] == ir.nodes[2].to_dict()["attrs"]
    assert [one.name for one in node.inputs] == ["call", "x"]
    assert node.inputs[0].producer is None
    assert node.inputs[0].consumers == [node]
    assert ir.check()


def test_a_shallow_copy_of_a_node_is_refused() -> None:
    """It would produce the same tensors as the node itself."""
    with pytest.raises(ReadOnlyError, match=r"use ir\.clone\(\), or node\.copy"):
        copy.copy(mlp().nodes[0])


def test_a_shallow_copy_of_a_tensor_stands_alone() -> None:
    ir = graph()
    x = copy.copy(ir.graph_inputs[0])
    assert (x.name, x.shape, x.dtype, x.consumers) == ("x", ("n", 3), "float32", [])
    assert ir.check()
