"""Drawings of training steps: forward at the left, backward and update at the right."""

from pathlib import Path

from tests.explored import trained
from torch_ir import render
from torch_ir.draw.columns import in_columns
from torch_ir.draw.scene import build_scene


def test_forward_and_backward_are_columns() -> None:
    """A value of forward that backward reads is a letter in both."""
    ir = trained()
    scene, columns = in_columns(build_scene(ir, depth=1))
    assert [side.title for side in scene.sides] == ["forward", "backward and update"]
    names = {box.id: box.names for box in scene.boxes}
    parts = [{name for box in column for name in names.get(box, ())} for column in columns]
    later = {node.name for node in ir.nodes if node.origin.module.startswith(("backward", "optimizer"))}
    assert (parts[0] & later, parts[1]) == (set(), later)
    letters = [[box for box in scene.boxes if box.kind == "connector" and box.id in column] for column in columns]
    assert {box.lines for box in letters[0]} == {box.lines for box in letters[1]} != set()


def test_titles_are_drawn(tmp_path: Path) -> None:
    render(trained(), tmp_path / "step.dot", depth=1)
    text = (tmp_path / "step.dot").read_text()
    assert "<b>forward</b>" in text
    assert "<b>backward and update</b>" in text


def test_forward_alone_is_one_column() -> None:
    ir = trained()
    ir.graph_outputs = ir.graph_outputs[:1]
    ir.erase([node for node in reversed(ir.nodes) if node.origin.module.startswith(("backward", "optimizer"))])
    assert not build_scene(ir, depth=1).sides
