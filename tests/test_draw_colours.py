"""Colours: costs as heat, differences as marks, families in a legend."""

import math
import re

import pytest

from tests.test_draw import mlp
from tests.test_draw_folded import layers
from tests.test_draw_views import model, text
from torch_ir.draw.colours import COLOURS
from torch_ir.draw.dot import to_dot
from torch_ir.draw.families import family_of
from torch_ir.draw.heat import BRIGHT, COLD, DARK, STOPS, colour, text_on
from torch_ir.draw.mermaid import to_mermaid
from torch_ir.draw.scene import build_scene
from torch_ir.errors import DrawError

COSTS = {"fc0": 30.0, "fc1": 30.0, "fc2": 30.0, "head": 10.0}


def test_boxes_say_their_share() -> None:
    """The darkest box costs most; free boxes have no share and no colour; the legend shows the range."""
    scene = build_scene(layers(3), heat=COSTS, unit="FLOPs", include_weights=False)
    boxes = {box.id: (box.lines[-1], box.fill) for box in scene.boxes}
    assert boxes["op_fc1"] == ("30 %", STOPS[-1])
    assert boxes["op_head"] == ("10 %", colour(1 / 3))
    assert boxes["op_mix0"] == ("2x4", COLD)
    assert boxes["input_x"] == ("2x4", "")
    assert scene.scale is not None
    assert (scene.scale.low, scene.scale.high, scene.scale.whole) == ("0", "30 FLOPs per box", "100 FLOPs in all")
    assert f"style op_fc1 fill:{STOPS[-1]},color:#ffffff" in text(scene)
    assert 'scale["100 FLOPs in all<br/>light: 0<br/>dark: 30 FLOPs per box"]' in text(scene)
    dot = to_dot(scene)
    assert re.search(rf'op_fc1 \[.*fillcolor="{STOPS[-1]}".*fontcolor="#ffffff"', dot)
    assert "30 FLOPs per box" in dot


def test_a_box_of_several_nodes_has_the_cost_of_all() -> None:
    """Of a folded layer all repetitions count, of a module all nodes inside: shares add up to the whole."""
    for options in ({"fold": True}, {"depth": 3, "fold": True}):
        scene = build_scene(model(3), heat=COSTS, **options)
        assert [box.lines[-1] for box in scene.boxes if box.lines[-1].endswith("%")] == ["90 %", "10 %"]


def test_shares_are_those_of_the_whole_graph_in_a_neighbourhood_too() -> None:
    scene = build_scene(layers(3), heat=COSTS, focus="head", radius=0)
    assert [box.lines for box in scene.boxes if box.is_centre] == [("linear", "2x4", "10 %")]


def test_the_scale_gets_darker_and_text_stays_readable() -> None:
    """Lightness falls all the way, and letters have at least the contrast that web pages must have."""
    luminances = [luminance(colour(step / 20)) for step in range(21)]
    assert luminances == sorted(luminances, reverse=True)
    for step in range(21):
        fill = colour(step / 20)
        light, dark = sorted([luminance(fill), luminance(text_on(fill))], reverse=True)
        assert (light + 0.05) / (dark + 0.05) >= 4.5, fill
    assert (text_on("#ffffff"), text_on("#000000")) == (DARK, BRIGHT)


def luminance(fill: str) -> float:
    shares = [int(fill[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (x / 12.92 if x <= 0.04045 else ((x + 0.055) / 1.055) ** 2.4 for x in shares)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@pytest.mark.parametrize("number", [-1.0, math.nan, math.inf])
def test_heat_must_be_a_number(number: float) -> None:
    with pytest.raises(DrawError, match="the heat of 'fc0' is"):
        build_scene(layers(1), heat={"fc0": number})


def test_a_graph_that_costs_nothing_is_cold() -> None:
    assert {box.fill for box in build_scene(layers(1), heat={}).boxes if box.kind == "op"} == {COLD}


def test_placeholders_stay_red_in_the_heat() -> None:
    scene = build_scene(layers(3), heat=COSTS, placeholders={"fc0"})
    assert re.search(
        rf'op_fc0 \[.*fillcolor="{STOPS[-1]}", color="#c62828", penwidth=2.5.*fontcolor="#ffffff"', to_dot(scene)
    )


# -- marks ------------------------------------------------------------------------------------------------------------


def test_marks_are_colours() -> None:
    marks = {"mix0": "removed", "fc1": "changed", "head": "added", "mask": "same", "embed": "renamed"}
    scene = build_scene(layers(2), marks=marks)
    assert {box.id: box.mark for box in scene.boxes if box.mark} == {
        "op_mix0": "removed",
        "op_fc1": "changed",
        "op_head": "added",
    }
    assert [line for line in text(scene) if line.startswith("style")] == [
        "style op_mix0 fill:#fbd5d5,stroke:#c62828",
        "style op_fc1 fill:#fde7b8,stroke:#b26a00",
        "style op_head fill:#cfeed4,stroke:#2e7d32",
    ]
    dot = to_dot(scene)
    assert re.search(r'op_head \[.*fillcolor="#cfeed4", color="#2e7d32"', dot)
    assert re.search(r'op_mask \[.*fillcolor="#f7f7f7"', dot)  # equal nodes step back
    assert all(word in dot for word in ("removed", "added", "changed"))


def test_modules_count_what_differs_inside() -> None:
    scene = build_scene(model(2), depth=3, marks={"mix0": "removed", "fc0": "changed", "total0": "changed"})
    marked = [(box.id, box.mark, box.lines[-1]) for box in scene.boxes if box.mark]
    assert marked == [("op_model_layers_0", "changed", "1 removed, 2 changed")]


def test_layers_that_differ_otherwise_are_not_drawn_as_one() -> None:
    every = {f"mix{index}": "changed" for index in range(4)}
    assert len(build_scene(layers(4), fold=True, marks=every).frames) == 1
    apart = build_scene(layers(4), fold=True, marks={"mix3": "changed"})
    assert apart.frames[0].title.startswith("model.layers.0\N{EN DASH}2 ")


# -- families ---------------------------------------------------------------------------------------------------------


def test_families_are_explained_in_all_but_small_pictures() -> None:
    """Those of the whole drawing, in a fixed order; never in Mermaid, and not with heat."""
    large = build_scene(layers(8))
    dot = to_dot(large)
    assert [word for word in ("matrix product", "element-wise", "data movement", "activation") if word in dot] == [
        *("matrix product", "element-wise", "data movement"),
    ]
    assert "matrix product" not in to_dot(large, legend=False)
    assert "matrix product" not in to_mermaid(large)
    assert "matrix product" not in to_dot(build_scene(mlp()))
    assert "matrix product" in to_dot(build_scene(mlp()), legend=True)
    assert "matrix product" not in to_dot(build_scene(layers(8), heat=COSTS))


def test_every_family_has_a_colour() -> None:
    ops = ("mm", "relu", "add", "batch_norm", "view", "mean", "scaled_dot_product_attention", "thing")
    assert {family_of(f"aten.{op}.default") for op in ops} <= COLOURS.keys()
