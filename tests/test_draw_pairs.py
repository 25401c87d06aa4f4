"""Two graphs side by side: frames for both, differences in colour, and only those for large graphs."""

from pathlib import Path

import pytest
import torch
from torch import nn

import torch_ir
from tests.proof import captured
from tests.test_diff_events import Convolutions
from tests.test_draw_folded import layers
from tests.test_draw_views import model, svg_groups, text
from torch_ir.cli.dispatch import main
from torch_ir.draw.dot import to_dot
from torch_ir.draw.drawn_pairs import build_pair, render_pair
from torch_ir.draw.elements import Scene
from torch_ir.errors import DrawError
from torch_ir.ir import IR


def without_mix(count: int, at: int) -> tuple[IR, IR, tuple[dict[str, str], dict[str, str]]]:
    """Return layers, the same without one node, and their differences."""
    before, after = model(count), model(count)
    gone, reader = after.node(f"mix{at}"), after.node(f"total{at}")
    reader.inputs = [reader.inputs[0], gone.inputs[0]]
    gone.inputs = ()
    after.nodes.remove(gone)
    return before, after, ({gone.name: "removed", reader.name: "changed"}, {reader.name: "changed"})


def sides(scene: Scene) -> list[list[str]]:
    return [[box.removeprefix(f"{frame.id}_") for box in frame.boxes] for frame in scene.frames]


def test_small_graphs_stand_side_by_side() -> None:
    """Each in a frame with its title; ids distinguish the sides, colours the differences."""
    before, after, marks = without_mix(1, 0)
    scene = build_pair(before, after, marks, ("one.json", "two.json"), ("Layers", "nodes 6 → 5"))
    assert sides(scene) == [
        ["input_x", "op_embed", "op_mask", "op_fc0", "op_mix0", "op_total0", "op_head", "output_0"],
        ["input_x", "op_embed", "op_mask", "op_fc0", "op_total0", "op_head", "output_0"],
    ]
    lines = text(scene)
    assert 'heading["Layers<br/>nodes 6 #8594; 5"]' in lines
    assert [line for line in lines if line.startswith("subgraph")] == [
        'subgraph before["one.json"]',
        'subgraph after["two.json"]',
    ]
    assert [line for line in lines if line.startswith(("style before", "style after"))] == [
        "style before_op_mix0 fill:#fbd5d5,stroke:#c62828",
        "style before_op_total0 fill:#fde7b8,stroke:#b26a00",
        "style after_op_total0 fill:#fde7b8,stroke:#b26a00",
    ]
    dot = to_dot(scene)
    assert "before_title -> after_title [style=invis, constraint=false]" in dot
    assert 'id="before/mix0"' in dot


def test_of_large_graphs_only_differences_are_drawn() -> None:
    """With a few boxes around them, and a note in the drawing."""
    before, after, marks = without_mix(40, 7)
    scene = build_pair(before, after, marks)
    drawn = {box.id for box in scene.boxes}
    assert {"before_op_mix7", "before_op_total7", "after_op_total7", "before_op_fc7", "after_op_fc8"} <= drawn
    assert "before_op_mix20" not in drawn
    told = "differences, and 2 boxes around each; 226 more boxes are equal on both sides"
    assert scene.heading == (told,)
    assert told in to_dot(scene)
    whole = build_pair(before, after, marks, only_differences=False)
    assert "before_op_mix20" in {box.id for box in whole.boxes}


def test_a_side_without_differences_shows_what_the_other_shows() -> None:
    """Where something was only added, the place where it was put is drawn on the other side too."""
    before, after, _ = without_mix(40, 7)
    scene = build_pair(after, before, ({}, {"mix7": "added"}))
    assert [box.id for box in scene.boxes if box.mark] == ["after_op_mix7"]
    assert "before_op_total7" in {box.id for box in scene.boxes}
    assert "before_op_mix20" not in {box.id for box in scene.boxes}


def test_equal_graphs_have_no_differences_to_cut_to() -> None:
    scene = build_pair(layers(40), layers(40), ({}, {}), fold=True)
    assert not any(box.mark for box in scene.boxes)
    assert sides(scene)[0] == sides(scene)[1]
    assert scene.heading == ("no difference is visible",)


def test_folds_depth_and_focus_hold_on_both_sides() -> None:
    before, after, marks = without_mix(6, 5)
    folded = build_pair(before, after, marks, fold=True)
    assert [[inner.title.split("  ")[0] for inner in frame.frames] for frame in folded.frames] == [
        ["model.layers.0\N{EN DASH}4"],
        ["model.layers.0\N{EN DASH}4"],
    ]
    modules = build_pair(before, after, marks, fold=True, depth=3)
    marked = {box.id: box.lines[-2:] for box in modules.boxes if box.mark}
    assert marked == {
        "before_op_model_layers_5": ("1 removed, 1 changed", "3 → 2 ops"),
        "after_op_model_layers_5": ("1 changed", "3 → 2 ops"),
    }
    assert {box.mark for box in modules.boxes if box.id in marked} == {"changed"}
    focused = build_pair(before, after, marks, focus="model.layers.2", radius=0)
    assert [[box for box in side if box.startswith("op_")] for side in sides(focused)] == [
        ["op_fc2", "op_mix2", "op_total2"],
        ["op_fc2", "op_mix2", "op_total2"],
    ]


def test_focus_on_what_only_one_side_has() -> None:
    """The other side shows its part of the same neighbourhood; a name unknown to both is an error."""
    before, after, marks = without_mix(9, 4)
    scene = build_pair(before, after, marks, focus="mix4", radius=1)
    assert [[box for box in side if box.startswith("op_")] for side in sides(scene)] == [
        ["op_mask", "op_fc4", "op_mix4", "op_total4"],
        ["op_mask", "op_fc4", "op_total4"],
    ]
    with pytest.raises(DrawError, match="unknown node, input or module 'mix44'; did you mean 'mix4'"):
        build_pair(before, after, marks, focus="mix44")


def test_what_the_optimiser_did_to_a_real_model(tmp_path: Path) -> None:
    """Batch norms are gone, and convolutions read other weights; the prologue is not drawn."""
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU()).eval()
    before = captured(net, torch.randn(1, 3, 8, 8))
    after, _ = torch_ir.optimize(before, "basic")
    render_pair(before, after, tmp_path / "pair.svg", torch_ir.diff(before, after).marks(), fold=True)
    ids = {group.get("id") for group in svg_groups(tmp_path / "pair.svg")}
    assert {"before/conv2d", "before/batch_norm", "before/relu", "after/relu"} <= ids
    assert not any(str(name).startswith("after/batch_norm") for name in ids)


def test_marked_boxes_have_signs() -> None:
    """A plus, a minus or a tilde before the name, and in the legend: colours alone are not enough."""
    before, after, marks = without_mix(3, 1)
    scene = build_pair(before, after, marks)
    firsts = {box.mark: box.lines[0] for box in scene.boxes if box.mark}
    assert firsts["removed"].startswith("\N{MINUS SIGN} ")
    assert firsts["changed"].startswith("~ ")
    assert all(box.lines[0][:2] not in ("+ ", "~ ") for box in scene.boxes if not box.mark)
    assert "\N{MINUS SIGN} removed" in to_dot(scene).replace("&#160;", " ")


def test_a_convolution_that_absorbed_its_norm_is_amber(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """On the command line, what a pass replaced is on both sides; only the norms are removed."""
    graph = captured(Convolutions().eval(), torch.ones(2, 4, 6, 6))
    better, _ = torch_ir.optimize(graph, "basic")
    graph.save(tmp_path / "before.json")
    better.save(tmp_path / "after.json")
    arguments = ["--against", str(tmp_path / "after.json"), "--format", "mermaid"]
    assert main(["draw", str(tmp_path / "before.json"), *arguments]) == 0
    text = capsys.readouterr().out
    assert (text.count('"~ conv2d'), text.count('"#8722; batch_norm'), text.count('"+ ')) == (5, 2, 0)
