"""Views of a drawing: modules as boxes, the surroundings of a node, the automatic choice."""

import re
import xml.etree.ElementTree as ElementTree
from functools import partial
from pathlib import Path

import pytest

from tests.test_draw import HOSTILE
from tests.test_draw_folded import layers, node, tensor
from torch_ir.draw import render
from torch_ir.draw.dot import to_dot
from torch_ir.draw.elements import Scene
from torch_ir.draw.mermaid import to_mermaid
from torch_ir.draw.scene import build_scene
from torch_ir.draw.view_options import legible
from torch_ir.errors import DrawError
from torch_ir.ir import IR, OpNode, Origin, TensorMeta


def model(count: int = 3) -> IR:
    """Residual layers whose modules have classes."""
    ir = layers(count)
    ir.modules = {"embed": "torch.nn.modules.sparse.Embedding", "head": "torch.nn.modules.linear.Linear"}
    for index in range(count):
        ir.modules |= {
            f"model.layers.{index}": "lib.Layer",
            f"model.layers.{index}.fc": "torch.nn.modules.linear.Linear",
        }
    return ir


def text(scene: Scene) -> list[str]:
    return [line.strip() for line in to_mermaid(scene).splitlines()[1:]]


# -- depth ------------------------------------------------------------------------------------------------------------


def test_modules_at_a_depth_are_one_box_each() -> None:
    """A box shows class, path, output and content; a layer above that depth is a box, operators are unchanged."""
    assert text(build_scene(model(2), depth=3)) == [
        'input_x[/"Input: x<br/>2x4"/]',
        'op_embed["Embedding<br/>embed<br/>2x4"]',
        "input_x --> op_embed",
        'op_mask["tril<br/>2x4"]',
        "input_x --> op_mask",
        'op_model_layers_0["Layer<br/>model.layers.0<br/>2x4<br/>3 ops, 16 parameters"]',
        "op_embed --> op_model_layers_0",
        "op_mask --> op_model_layers_0",
        'op_model_layers_1["Layer<br/>model.layers.1<br/>2x4<br/>3 ops, 16 parameters"]',
        "op_model_layers_0 --> op_model_layers_1",
        "op_mask --> op_model_layers_1",
        'op_head["Linear<br/>head<br/>2x4"]',
        "op_model_layers_1 --> op_head",
        r'output_0[\"Output<br/>2x4"/]',
        "op_head --> output_0",
    ]


def test_a_smaller_depth_is_a_coarser_picture() -> None:
    boxes = {depth: [box.lines[0] for box in build_scene(model(), depth=depth).boxes] for depth in (1, 3, 4)}
    assert boxes[1] == ["Input: x", "Embedding", "tril", "model", "Linear", "Output"]
    assert boxes[3] == ["Input: x", "Embedding", "tril", "Layer", "Layer", "Layer", "Linear", "Output"]
    assert boxes[4][3:6] == ["Linear", "mul", "add"]  # operators that a layer calls directly, around the nested module


def test_equal_modules_are_one_box_that_says_how_many() -> None:
    """A frame around one box would be redundant."""
    scene = build_scene(model(8), depth=3, fold=True)
    lines = {box.id: box.lines for box in scene.boxes}
    assert lines["op_model_layers_0"] == (
        *("Layer", "model.layers.0\N{EN DASH}7  \N{MULTIPLICATION SIGN}8", "2x4", "3 ops, 16 parameters"),
    )
    assert not scene.frames
    assert len(next(box for box in scene.boxes if box.id == "op_model_layers_0").names) == 24


def test_calls_of_one_module_are_boxes_of_their_own() -> None:
    last = x = tensor("x")
    nodes = []
    for call in range(2):
        nodes.append(node(f"neg{call}", "neg", "block", [last]))
        nodes[-1].origin = Origin("block", call, "Block")
        last = nodes[-1].outputs[0]
    nodes.insert(1, node("between", "relu", "", [nodes[0].outputs[0]]))
    nodes[2].inputs = [nodes[1].outputs[0]]
    scene = build_scene(IR(nodes, [x], [last]), depth=1)
    assert [box.lines[:2] for box in scene.boxes if box.kind == "op"] == [
        ("Block", "block"),
        ("relu", "2x4"),
        ("Block", "block"),
    ]


def masked(count: int) -> IR:
    """x -> operators of one source line -> fc, with one more that nothing reads."""
    x = tensor("x")
    nodes, last = [], x
    for at in range(count):
        made = tensor(f"mask{at}")
        origin = Origin("", 0, "Model", "src/model.py:7")
        nodes.append(OpNode(made.name, "aten.neg.default", [last], [made], args=["self"], origin=origin))
        last = made
    out, dead, gone = tensor("out"), tensor("dead"), tensor("gone")
    at = Origin("fc", 0, "Linear", "src/model.py:9")
    nodes += [
        OpNode("out", "aten.relu.default", [last], [out], args=["self"], origin=at),
        OpNode("dead", "aten.neg.default", [x], [dead], args=["self"], origin=Origin("", 0, "Model", "src/model.py:8")),
        OpNode("gone", "aten.exp.default", [dead], [gone], args=["self"], origin=Origin("", 0, "Model", "model.py:10")),
    ]
    return IR(nodes, [x], [out], modules={"": "lib.Model", "fc": "lib.Linear"})


def test_many_operators_of_one_source_line_are_one_box() -> None:
    """Named after the line, with their number; a few stay as they are."""
    scene = build_scene(masked(5), depth=1)
    assert next(box.lines for box in scene.boxes if box.kind == "op") == ("model.py:7", "2x4", "5 ops")
    few = build_scene(masked(4), depth=1)
    assert [box.lines[0] for box in few.boxes if box.kind == "op"][:4] == ["neg"] * 4
    assert scene.boxes[1].names == tuple(f"mask{at}" for at in range(5))


def test_what_leads_to_no_result_is_pale() -> None:
    """Also what only such a box reads; the drawing says what pale means, and others have their colours."""
    scene = build_scene(masked(5), depth=1)
    assert [box.names for box in scene.boxes if box.is_dead] == [("dead",), ("gone",)]
    assert scene.note == "pale boxes lead to no result"
    (line,) = [line for line in to_dot(scene).splitlines() if line.strip().startswith("op_dead [")]
    assert 'style="rounded,dashed"' in line
    assert not any(box.is_dead for box in build_scene(model()).boxes)


def sized(name: str, *shape: int) -> TensorMeta:
    return TensorMeta(name, shape, "float32")


def test_a_module_has_the_colour_of_its_work() -> None:
    """Not of its last operator, nor of one that does little: a product with a large matrix outweighs attention."""
    x, w = sized("x", 4, 512), sized("w", 512, 512)
    product, scores, out = sized("product", 4, 512), sized("scores", 4, 512), sized("out", 4, 512)
    at = Origin("block", 0, "Block")
    nodes = [
        OpNode("product", "aten.linear.default", [x, w], [product], args=["input", "weight"], origin=at),
        OpNode("scores", "aten.scaled_dot_product_attention.default", [product, x, x], [scores],
               args=["query", "key", "value"], origin=at),
        OpNode("out", "aten.relu.default", [scores], [out], args=["self"], origin=at),
        OpNode("end", "aten.neg.default", [out], [sized("end", 4, 512)], args=["self"]),
    ]  # fmt: skip
    ir = IR(nodes, [x, w], [nodes[-1].outputs[0]], modules={"": "lib.Model", "block": "lib.Block"})
    assert next(box.family for box in build_scene(ir, depth=1).boxes if box.lines[0] == "Block") == "matmul"
    nodes[0].op_type = "aten.mul.Tensor"
    assert next(box.family for box in build_scene(ir, depth=1).boxes if box.lines[0] == "Block") == "attention"


def test_arrows_between_modules_are_merged() -> None:
    """Two tensors between the same boxes are one arrow with a count."""
    x = tensor("x")
    cos, sin = node("cos", "cos", "rope", [x]), node("sin", "sin", "rope", [x])
    mix = node("mix", "mul", "attn", [cos.outputs[0], sin.outputs[0]])
    scene = build_scene(IR([cos, sin, mix], [x], [mix.outputs[0]]), depth=1)
    assert [(edge.source, edge.target, edge.label) for edge in scene.edges] == [
        ("input_x", "op_rope", ""),
        ("op_rope", "op_attn", "\N{MULTIPLICATION SIGN}2"),
        ("op_attn", "output_0", ""),
    ]


def test_modules_that_hold_placeholders_say_how_many() -> None:
    """They have a red border; one with only placeholders is red itself."""
    scene = build_scene(model(), depth=3, placeholders={"mix0", "head"})
    kinds = {box.id: (box.kind, box.lines[-1]) for box in scene.boxes if box.kind in ("placeholder", "partly")}
    assert kinds == {"op_model_layers_0": ("partly", "1 placeholder"), "op_head": ("placeholder", "2x4")}
    assert scene.legend == "2 placeholders: no lowering"
    assert re.search(r'op_model_layers_0 \[.*penwidth=2.5, color="#c62828"', to_dot(scene))
    assert "style op_model_layers_0 stroke:#c62828,stroke-width:3px" in text(scene)


def test_modules_with_other_placeholders_are_not_equal() -> None:
    scene = build_scene(model(4), depth=3, fold=True, placeholders={"mix3"})
    paths = [box.lines[1] for box in scene.boxes if box.lines[0] == "Layer"]
    assert paths == ["model.layers.0\N{EN DASH}2  \N{MULTIPLICATION SIGN}3", "model.layers.3"]


def test_what_is_inside_calls_is_part_of_their_modules() -> None:
    """A graph in function form has the drawing of the flat one."""
    flat = model(4)
    assert to_dot(build_scene(flat.fold_blocks(), depth=3, fold=True)) == to_dot(build_scene(flat, depth=3, fold=True))


@pytest.mark.parametrize("depth", [0, -1])
def test_a_depth_of_nothing_is_refused(depth: int) -> None:
    with pytest.raises(DrawError, match="depth must be at least 1"):
        build_scene(model(), depth=depth)


# -- focus ------------------------------------------------------------------------------------------------------------


def test_the_neighbourhood_of_a_node() -> None:
    """Nodes before and after it; where the graph continues, a dashed end names the next node or counts them."""
    scene = build_scene(model(), focus="mix1", radius=1, include_weights=False)
    assert text(scene) == [
        'before_op_mask["#8230; x"]',
        "before_op_mask -.-> op_mask",
        'before_op_fc1["#8230; total0"]',
        "before_op_fc1 -.-> op_fc1",
        'before_op_total1["#8230; total0"]',
        "before_op_total1 -.-> op_total1",
        'op_mask["tril<br/>2x4"]',
        'op_fc1["linear<br/>2x4"]',
        'op_mix1["mul<br/>2x4"]',
        'op_fc1 -->|"2x4"| op_mix1',
        'op_mask -->|"2x4"| op_mix1',
        'op_total1["add<br/>2x4"]',
        'op_mix1 -->|"2x4"| op_total1',
        'after_op_mask["#8230; 2 more"]',
        "op_mask -.-> after_op_mask",
        'after_op_total1["#8230; 2 more"]',
        "op_total1 -.-> after_op_total1",
        "style before_op_mask fill:none,stroke:none",
        "style before_op_fc1 fill:none,stroke:none",
        "style before_op_total1 fill:none,stroke:none",
        "style op_mix1 stroke:#1f4e9c,stroke-width:4px",
        "style after_op_mask fill:none,stroke:none",
        "style after_op_total1 fill:none,stroke:none",
    ]


def test_the_radius_counts_nodes() -> None:
    """Three by default; other consumers of a value are not part of the neighbourhood."""
    ids = {radius: {box.id for box in build_scene(model(9), focus="mix4", radius=radius).boxes} for radius in (0, 1, 2)}
    assert {box for box in ids[0] if box.startswith("op_")} == {"op_mix4"}
    assert ids[2] - ids[1] >= {"op_total3", "op_fc5", "op_total5"}
    three = {box.id for box in build_scene(model(9), focus="mix4").boxes}
    assert "op_mix5" in three
    assert "op_mix8" not in three  # it reads the mask too


def test_a_module_may_be_the_centre() -> None:
    scene = build_scene(model(9), focus="model.layers.4", radius=1)
    assert [box.id for box in scene.boxes if box.is_centre] == ["op_fc4", "op_mix4", "op_total4"]
    assert re.search(r'op_mix4 \[.*penwidth=3.5, color="#1f4e9c"', to_dot(scene))


def test_focus_on_what_is_drawn_once_or_as_a_module() -> None:
    """The box that contains the node is the centre, a folded layer or a module."""
    folded = build_scene(model(9), focus="mix7", fold=True, radius=1)
    assert [box.id for box in folded.boxes if box.is_centre] == ["op_mix0"]
    assert folded.frames[0].boxes == ("op_fc0", "op_mix0", "op_total0")
    module = build_scene(model(9), focus="mix7", depth=3, radius=1)
    assert [box.id for box in module.boxes if box.is_centre] == ["op_model_layers_7"]
    assert [box.lines for box in module.boxes if box.kind == "stub"][-1] == ("… head",)


def test_an_input_may_be_the_centre() -> None:
    scene = build_scene(model(2), focus="x", radius=1)
    assert [box.id for box in scene.boxes if box.kind != "stub"] == ["input_x", "op_embed", "op_mask"]


def test_placeholders_stay_red_in_a_neighbourhood() -> None:
    scene = build_scene(model(), focus="mix1", radius=1, placeholders={"mix1", "head"})
    assert [box.id for box in scene.boxes if box.kind == "placeholder"] == ["op_mix1"]
    assert scene.legend == "2 placeholders: no lowering"


@pytest.mark.parametrize(
    ("focus", "told"),
    [
        ("mix12", "unknown node, input or module 'mix12'; did you mean 'mix2'?"),
        ("model.layer.1", "unknown node, input or module 'model.layer.1'; did you mean 'model.layers.1'?"),
        ("", "unknown node, input or module ''"),
    ],
)
def test_an_unknown_centre_is_one_sentence(focus: str, told: str) -> None:
    with pytest.raises(DrawError) as caught:
        build_scene(model(), focus=[focus])
    assert str(caught.value) == told


def test_a_negative_radius_is_refused() -> None:
    with pytest.raises(DrawError, match="radius must be at least 0, not -1"):
        build_scene(model(), focus="mix1", radius=-1)


# -- what is easy to read ---------------------------------------------------------------------------------------------


def test_small_graphs_are_drawn_whole_and_large_ones_legibly() -> None:
    """From whole, over equal layers once, to modules as boxes: the most detailed that has few enough boxes."""
    ir = model(4)
    scene, told = legible([ir], partial(build_scene, ir))
    assert (len([box for box in scene.boxes if box.kind == "op"]), told) == (len(ir.nodes), "")
    ir = model(16)
    for index in range(16):
        ir.node(f"mix{index}").attrs["odd"] = index
    scene, told = legible([ir], partial(build_scene, ir))
    assert (len([box for box in scene.boxes if box.kind == "op"]), told) == (len(ir.nodes), "")
    ir = model(200)
    _, told = legible([ir], partial(build_scene, ir))
    assert told == "603 nodes in 8 boxes: equal layers are drawn once"
    for index in range(200):
        ir.node(f"mix{index}").attrs["odd"] = index
    _, told = legible([ir], partial(build_scene, ir))
    assert told == "603 nodes in 6 boxes: modules at depth 2 are one box each, and equal ones are drawn once"


# -- SVG --------------------------------------------------------------------------------------------------------------


def test_svg_boxes_have_the_names_of_nodes_and_say_more(tmp_path: Path) -> None:
    """The id of a box is its node, its title the tooltip; hostile names stay text."""
    ir = model(1)
    ir.node("mix0").origin = Origin("model.layers.0", 0, "Layer", "model.py:12")
    render(ir, tmp_path / "model.svg")
    groups = {group.get("id"): group for group in svg_groups(tmp_path / "model.svg")}
    title = groups["mix0"].find("{http://www.w3.org/2000/svg}title")
    assert title is not None
    assert title.text == (
        "mix0: aten.mul.default\nmodule model.layers.0 (Layer)\nsource model.py:12\n"
        "reads fc0 float32 2x4, mask float32 2x4\nreturns mix0 float32 2x4"
    )
    last = x = tensor("x")
    nodes = []
    for index, name in enumerate(HOSTILE):
        nodes.append(node(f"{name}{index}", "relu", name, [last]))
        last = nodes[-1].outputs[0]
    render(IR(nodes, [x], [last], model_name="<script>"), tmp_path / "hostile.svg", max_nodes=0)
    ids = [group.get("id") for group in svg_groups(tmp_path / "hostile.svg")]
    assert f"<script>x</script>{HOSTILE.index('<script>x</script>')}" in ids
    root = ElementTree.parse(tmp_path / "hostile.svg").getroot()
    assert not list(root.iter("{http://www.w3.org/2000/svg}script"))


def svg_groups(path: Path) -> list[ElementTree.Element]:
    root = ElementTree.parse(path).getroot()
    return [group for group in root.iter("{http://www.w3.org/2000/svg}g") if group.get("class") == "node"]
