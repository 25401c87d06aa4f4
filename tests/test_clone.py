"""A clone is equal and shares no mutable state."""

import pytest

from tests.graphs import chain, everything, mlp, tensor
from torch_ir.errors import GraphError
from torch_ir.ir import IR, Symbol


def test_a_clone_says_the_same() -> None:
    """Text and file of a clone are those of the original, for every part that a graph can have."""
    ir = everything()
    copy = ir.clone()
    assert str(copy.check()) == str(ir)
    assert copy.to_json() == ir.to_json()


def test_a_clone_shares_nothing_that_can_be_changed() -> None:
    """No change of a clone affects the original."""
    ir = everything()
    before = ir.to_json()
    copy = ir.clone()
    copy.node("max_1").attrs["nested"][1].append("changed")
    copy.node("max_1").attrs["table"]["inner"].append(2)
    copy.extensions["tool"]["$kept"].append(2)
    copy.constraints.append("batch != 4")
    copy.symbols["batch"].max = 2
    copy.functions["body"].functions["inner"].nodes[0].op_type = "aten.exp.default"
    copy.functions["body"].nodes.clear()
    copy.graph_inputs[0].shape = (9, "batch")
    copy.params[0].name = "renamed"
    copy.mutations = []
    copy.graph_outputs = copy.graph_outputs[:1]
    for node in copy.nodes:
        node.inputs = ()
    assert ir.to_json() == before
    assert ir.check() is ir


def test_a_clone_of_a_broken_link_is_not_repaired() -> None:
    """Cloning copies without checking: an invalid reference stays invalid."""
    ir = chain("aten.neg.default")
    ir.nodes[0].inputs = (tensor("nobody", 2, 3),)
    with pytest.raises(GraphError, match="reads 'nobody', which nothing before it makes"):
        ir.clone().check()


def test_symbols_of_a_clone_are_bound_to_the_tensors_of_the_clone() -> None:
    """A size is read off the clone's own input."""
    copy = everything().clone()
    assert copy.symbols["batch"].tensor is copy.graph_inputs[0]


def test_symbols_are_joined_by_name_like_everything_else() -> None:
    """A symbol may be bound to a record of the input; it ends up bound to the input itself."""
    x = tensor("x", "batch")
    ir = IR([], [x], [tensor("x", "batch")], symbols=[Symbol("batch", tensor=tensor("x", "batch"), dim=0)]).check()
    assert ir.symbols["batch"].tensor is x
    assert not ir.is_static
    assert mlp().is_static
