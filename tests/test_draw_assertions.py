"""Assertion nodes are not drawn: they are counted, and an option shows them."""

import pytest

from tests.test_draw_folded import tensor
from torch_ir.cli import main
from torch_ir.draw.dot import to_dot
from torch_ir.draw.drawn_pairs import build_pair
from torch_ir.draw.mermaid import to_mermaid
from torch_ir.draw.scene import build_scene
from torch_ir.errors import DrawError
from torch_ir.ir import IR, OpNode
from torch_ir.ir.graph.attr_types import FunctionRef

CHECK = "aten._assert_tensor_metadata.default"


def checked() -> IR:
    """relu, with assertions on its input and output."""
    x, y = tensor("x"), tensor("y")
    nodes = [
        OpNode("check", CHECK, [x], []),
        OpNode("relu", "aten.relu.default", [x], [y]),
        OpNode("again", CHECK, [y], []),
    ]
    return IR(nodes, [x], [y])


def names(scene) -> list[str]:
    return [name for box in scene.boxes if box.kind == "op" for name in box.names]


def test_they_are_counted_instead():
    ir = checked()
    before = ir.to_json()
    scene = build_scene(ir)
    assert (names(scene), scene.note) == (["relu"], "2 assertions are not drawn")
    assert '    left_out["2 assertions are not drawn"]' in to_mermaid(scene).splitlines()
    assert "2 assertions are not drawn" in to_dot(scene)
    assert ir.to_json() == before  # the graph is as it was


def test_one_whose_result_is_returned_is_drawn():
    x, y, token = tensor("x"), tensor("y"), tensor("token")
    nodes = [
        OpNode("relu", "aten.relu.default", [x], [y]),
        OpNode("check", "aten._functional_assert_scalar.default", [y], [token]),
    ]
    scene = build_scene(IR(nodes, [x], [y, token]), depth=1)
    assert (names(scene), scene.note) == (["relu", "check"], "")


def test_they_can_be_asked_for():
    """All of them, or one by its name."""
    scene = build_scene(checked(), assertions=True)
    assert (names(scene), scene.note) == (["check", "relu", "again"], "")
    scene = build_scene(checked(), focus="again")
    assert names(scene) == ["relu", "again"]
    assert scene.note == "1 assertion is not drawn"
    with pytest.raises(DrawError, match="unknown node, input or module 'chek'"):
        build_scene(checked(), focus="chek")


def test_one_that_stands_out_is_drawn():
    """Placeholders of a target, and assertions on only one side of a comparison."""
    scene = build_scene(checked(), placeholders={"check"})
    assert [box.kind for box in scene.boxes] == ["input", "placeholder", "op", "output"]
    assert (scene.legend, scene.note) == ("1 placeholder: no lowering", "1 assertion is not drawn")
    pair = build_pair(checked(), checked(), ({"check": "removed", "again": "same"}, {}))
    assert names(pair) == ["before/check", "before/relu", "after/relu"]
    assert pair.note == "1 assertion is not drawn; 2 assertions are not drawn"


def test_those_of_a_function_count_for_each_call():
    """Blocks that are opened for a picture lose theirs, too."""
    body = checked()
    x, y, z = tensor("x"), tensor("y"), tensor("z")
    calls = [
        OpNode(name, "lib.Block", [reads], [gives], {"function": FunctionRef("block")}, args=["x"])
        for name, reads, gives in (("one", x, y), ("two", y, z))
    ]
    ir = IR(calls, [x], [z], functions={"block": body})
    assert build_scene(ir).note == "4 assertions are not drawn"
    for view in ({"fold": True, "open_calls": True}, {"depth": 1}):
        text = to_mermaid(build_scene(ir, **view))
        assert "assert_tensor" not in text
        assert "4 assertions are not drawn" in text


def test_what_decides_is_drawn():
    """A decision that a capture assumed is not a mere assertion."""
    x = tensor("x")
    decision = OpNode("d", "torch_ir.decision.default", [x], [], {"assumed": True, "place": "net.py:3"})
    scene = build_scene(IR([decision], [x], [x]))
    assert [box.kind for box in scene.boxes] == ["input", "decision", "output"]
    assert not scene.note


def test_on_the_command_line(tmp_path, capsys):
    file = str(tmp_path / "a.json")
    checked().save(file)
    assert main(["draw", file]) == 0
    assert "_assert_tensor_metadata" not in capsys.readouterr().out
    assert main(["draw", file, "--assertions"]) == 0
    assert capsys.readouterr().out.count('["_assert_tensor_metadata"]') == 2
