"""Pictures of large models: equal layers drawn once, long strips in columns, placeholders red and counted."""

import re
import struct
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
import torch

from tests.proof import captured
from tests.test_draw import HOSTILE
from torch_ir.cli.dispatch import main
from torch_ir.draw import ir_to_mermaid, render
from torch_ir.draw.dot import to_dot
from torch_ir.draw.elements import Scene
from torch_ir.draw.families import Families
from torch_ir.draw.mermaid import to_mermaid
from torch_ir.draw.scene import build_scene
from torch_ir.ir import IR, OpNode, Origin, Param, TensorMeta
from torch_ir.ir.regroup.granularity import fold


def tensor(name: str) -> TensorMeta:
    return TensorMeta(name, (2, 4), "float32")


def node(name: str, op: str, module: str, reads: list[TensorMeta], **attrs: object) -> OpNode:
    return OpNode(
        name,
        f"aten.{op}.default",
        reads,
        [tensor(name)],
        attrs,
        args=list("abcd"[: len(reads)]),
        origin=Origin(module, 0, op.title()),
    )


def layers(count: int, odd: int = -1, with_cache: bool = False) -> IR:
    """`count` residual layers between an embedding and a head; the `odd` one adds where others multiply."""
    x = tensor("x")
    params: list[TensorMeta] = []
    inputs = [x]
    nodes = [node("embed", "embedding", "embed", [x])]
    outputs: list[TensorMeta] = []
    mask = node("mask", "tril", "", [x])
    nodes.append(mask)
    last = nodes[0].outputs[0]
    for index in range(count):
        path = f"model.layers.{index}"
        weight = TensorMeta(f"w{index}", (4, 4), "float32", param=Param((f"{path}.fc.weight",)))
        params.append(weight)
        fc = node(f"fc{index}", "linear", f"{path}.fc", [last, weight])
        reads = [fc.outputs[0], mask.outputs[0]]
        if with_cache:
            inputs.append(tensor(f"cache{index}"))
            reads.append(inputs[-1])
        mix = node(f"mix{index}", "add" if index == odd else "mul", path, reads)
        total = node(f"total{index}", "add", path, [last, mix.outputs[0]])
        if with_cache:
            outputs.append(mix.outputs[0])
        nodes += [fc, mix, total]
        last = total.outputs[0]
    nodes.append(node("head", "linear", "head", [last]))
    return IR(nodes, inputs, [nodes[-1].outputs[0], *outputs], params=params, model_name="Layers")


def drawn(scene: Scene) -> list[str]:
    return [box.id for box in scene.boxes]


def test_equal_layers_are_drawn_once() -> None:
    """The first represents all of them: it reads the value before, and its result is read after."""
    scene = build_scene(layers(32).check(), fold=True)
    assert drawn(scene) == ["input_x", "op_embed", "op_mask", "op_fc0", "op_mix0", "op_total0", "op_head", "output_0"]
    assert [(edge.source, edge.target) for edge in scene.edges if "total0" in edge.source] == [("op_total0", "op_head")]
    (frame,) = scene.frames
    assert frame.title == "model.layers.0\N{EN DASH}31  \N{MULTIPLICATION SIGN}32"
    assert frame.boxes == ("op_fc0", "op_mix0", "op_total0")


def test_a_layer_that_differs_stands_alone() -> None:
    scene = build_scene(layers(8, odd=3), fold=True)
    assert [frame.title.split("  ")[0] for frame in scene.frames] == [
        "model.layers.0\N{EN DASH}2",
        "model.layers.4\N{EN DASH}7",
    ]
    assert {"op_fc3", "op_mix3", "op_total3"} <= set(drawn(scene))


def test_layers_that_differ_in_turn_repeat_together() -> None:
    """Every third layer adds where the others multiply: three layers are drawn, for four times three."""
    ir = layers(12)
    for index in range(2, 12, 3):
        ir.node(f"mix{index}").op_type = "aten.add.default"
    scene = build_scene(ir, fold=True)
    (frame,) = scene.frames
    assert frame.title == "model.layers.0\N{EN DASH}11  \N{MULTIPLICATION SIGN}4 (3 each)"
    assert frame.boxes == ("op_fc2", "op_mix2", "op_total2")
    assert [inner.title for inner in frame.frames] == ["model.layers.0\N{EN DASH}1  \N{MULTIPLICATION SIGN}2"]
    assert [(edge.source, edge.target) for edge in scene.edges if "head" in edge.target] == [("op_total2", "op_head")]


def test_layers_that_are_wired_otherwise_are_not_equal() -> None:
    """The fourth layer reads the result of the second one, not of the third."""
    ir = layers(6)
    ir.node("fc3").inputs = [ir.node("total1").outputs[0], *ir.node("fc3").inputs[1:]]
    scene = build_scene(ir, fold=True)
    assert [frame.title.split("  ")[0] for frame in scene.frames] == [
        "model.layers.0\N{EN DASH}2",
        "model.layers.4\N{EN DASH}5",
    ]


def test_inputs_and_outputs_of_each_layer_are_drawn_once() -> None:
    """A cache is one box for all layers, with their number."""
    scene = build_scene(layers(5, with_cache=True).check(), fold=True)
    times = "\N{MULTIPLICATION SIGN}5"
    lines = {box.id: box.lines for box in scene.boxes}
    assert lines["input_cache0"] == ("Input: cache0", "2x4", times)
    assert [id for id in lines if id.startswith(("input_", "output_"))] == [
        *("input_x", "input_cache0", "output_0", "output_1")
    ]
    assert lines["output_1"] == ("Output", "2x4", times)


def test_what_reads_all_layers_has_one_arrow() -> None:
    ir = layers(4)
    every = [ir.node(f"mix{index}").outputs[0] for index in range(4)]
    ir.nodes.append(node("all", "stack", "", every))
    edges = [edge for edge in build_scene(ir, fold=True).edges if edge.target == "op_all"]
    assert [(edge.source, edge.label) for edge in edges] == [("op_mix0", "\N{MULTIPLICATION SIGN}4")]


def test_calls_of_one_module_are_repetitions() -> None:
    """A block that is called again and again is drawn once."""
    last = x = tensor("x")
    nodes = []
    for call in range(3):
        outer = (f"block@{call}",) if call else ()
        nodes.append(node(f"fc{call}", "linear", "block.fc", [last]))
        nodes[-1].origin = Origin("block.fc", call, "Linear", "", outer)
        nodes.append(node(f"relu{call}", "relu", "block", [nodes[-1].outputs[0]]))
        nodes[-1].origin = Origin("block", call, "Block")
        last = nodes[-1].outputs[0]
    scene = build_scene(IR(nodes, [x], [last]), fold=True)
    assert [(frame.title, frame.boxes) for frame in scene.frames] == [
        ("block  \N{MULTIPLICATION SIGN}3", ("op_fc0", "op_relu0"))
    ]


def test_calls_side_by_side_are_not_repetitions() -> None:
    """Two calls of one module on the same input may have different readers."""
    x = tensor("x")
    nodes = [node(f"rope{call}", "cos", "rope", [x]) for call in range(2)]
    nodes[1].origin = Origin("rope", 1, "Cos")
    scene = build_scene(IR(nodes, [x], [each.outputs[0] for each in nodes]), fold=True)
    assert not scene.frames


def test_frames_stand_inside_frames() -> None:
    """Blocks of stages: two stages of three blocks."""
    last = x = tensor("x")
    nodes = []
    for stage in range(2):
        for block in range(3):
            nodes.append(node(f"b{stage}{block}", "relu", f"stages.{stage}.blocks.{block}", [last]))
            last = nodes[-1].outputs[0]
        nodes.append(node(f"pool{stage}", "neg", f"stages.{stage}", [last]))
        last = nodes[-1].outputs[0]
    (outer,) = build_scene(IR(nodes, [x], [last]), fold=True).frames
    assert outer.title.startswith("stages.0\N{EN DASH}1")
    assert outer.boxes == ("op_pool0",)
    assert [(inner.title[:19], inner.boxes) for inner in outer.frames] == [
        ("stages.0.blocks.0\N{EN DASH}2", ("op_b00",))
    ]


def test_folded_pictures_as_text() -> None:
    text = to_mermaid(build_scene(layers(3), fold=True))
    assert text.splitlines()[-5:] == [
        '    subgraph frame_model_layers_0["model.layers.0#8211;2 \N{MULTIPLICATION SIGN}3"]',
        "    op_fc0",
        "    op_mix0",
        "    op_total0",
        "    end",
    ]
    dot = to_dot(build_scene(layers(3), fold=True, include_weights=True))
    frame = dot[dot.index("subgraph cluster_frame_model_layers_0") :]
    assert "op_fc0; op_mix0; op_total0;" in frame
    assert "rank=same; op_fc0; w_w0" in frame  # weights stand beside their reader inside the frame


def test_hostile_names_cannot_break_a_frame(tmp_path: Path) -> None:
    """Titles show as themselves: one line of Mermaid each, and SVG that is still XML."""
    last = x = tensor("x")
    nodes = []
    for name in HOSTILE:
        for index in range(2):
            nodes.append(node(f"n{len(nodes)}", "relu", f"{name}.{index}", [last]))
            last = nodes[-1].outputs[0]
    ir = IR(nodes, [x], [last])
    lines = to_mermaid(build_scene(ir, fold=True)).splitlines()
    titles = [line for line in lines if re.fullmatch(r'    subgraph frame_\w+\["[^"<>`\\]*"\]', line)]
    assert len(titles) == sum("subgraph" in line for line in lines) == len(HOSTILE)
    render(ir, tmp_path / "hostile.svg", fold=True)
    ElementTree.parse(tmp_path / "hostile.svg")


def test_defaults_of_a_folded_picture() -> None:
    """No weights, and 300 boxes instead of 30; both can be changed."""
    assert not any(box.kind == "weight" for box in build_scene(layers(2), fold=True).boxes)
    assert any(box.kind == "weight" for box in build_scene(layers(2), fold=True, include_weights=True).boxes)
    chain = IR([node(f"n{i}", "relu", "", [tensor("x")]) for i in range(400)], [tensor("x")], [tensor("n399")])
    notes = [box.lines for box in build_scene(chain, fold=True).boxes if box.kind == "note"]
    assert notes == [("... 100 more nodes ...",)]
    cut = build_scene(layers(4), max_nodes=3, fold=True)
    assert [box.lines for box in cut.boxes if box.kind == "note"] == [("... 3 more nodes ...",)]
    assert cut.frames[0].boxes == ("op_fc0",)


def long_strip(count: int) -> IR:
    last = x = tensor("x")
    nodes = []
    for index in range(count):
        skip = [nodes[0].outputs[0]] if index == count - 1 else []
        nodes.append(node(f"n{index}", "relu" if index % 2 else "neg", "", [last, *skip]))
        last = nodes[-1].outputs[0]
    return IR(nodes, [x], [last])


def test_a_long_strip_is_cut_into_columns(tmp_path: Path) -> None:
    """Arrows between columns end in circles with letters; the drawing is no longer a strip."""
    render(long_strip(90), tmp_path / "strip.png", max_nodes=0, include_weights=False)
    render(long_strip(90), tmp_path / "columns.png", fold=True)
    sizes = [struct.unpack(">II", (tmp_path / name).read_bytes()[16:24]) for name in ("strip.png", "columns.png")]
    assert sizes[0][1] / sizes[0][0] > 10
    assert sizes[1][1] / sizes[1][0] < 4
    dot = to_dot(build_scene(long_strip(90), fold=True))
    letters = re.findall(r"^ +(\w+_[A-Z]\w*) \[label", dot, re.MULTILINE)
    assert letters.count("out_A") == 1
    assert len([name for name in letters if name.startswith("out_")]) == 4  # three cuts, and the skip
    assert len([name for name in letters if name.startswith("in_")]) == 4
    assert "column_0 -> column_1 -> column_2 -> column_3" in dot


def test_ten_thousand_nodes_folded(tmp_path: Path) -> None:
    render(layers(3333), tmp_path / "large.svg", fold=True)
    assert "model.layers.0\N{EN DASH}3332" in (tmp_path / "large.svg").read_text(encoding="utf-8").replace(
        "&#160;", " "
    )


# -- placeholders and decisions ---------------------------------------------------------------------------------------


def test_placeholders_are_counted_in_a_legend() -> None:
    """All of the graph are counted, drawn or not; without any there is no legend."""
    scene = build_scene(layers(3), max_nodes=4, placeholders={"mix0", "mix2"})
    assert scene.legend == "2 placeholders: no lowering"
    assert "2 placeholders: no lowering" in to_dot(scene)
    assert to_mermaid(scene).splitlines()[-3:] == [
        "    style op_mix0 fill:#f8d0cc,stroke:#c62828,color:#7f1010",
        '    legend["2 placeholders: no lowering"]',
        "    style legend fill:#f8d0cc,stroke:#c62828,color:#7f1010",
    ]
    assert build_scene(layers(3), placeholders={"mix0"}).legend == "1 placeholder: no lowering"
    assert "legend" not in ir_to_mermaid(layers(3))
    assert "lowering" not in to_dot(build_scene(layers(3)))


def test_placeholders_inside_folded_layers_stay_red() -> None:
    """Layers are equal only if their placeholders are."""
    every = {f"mix{index}" for index in range(4)}
    scene = build_scene(layers(4), placeholders=every, fold=True)
    assert [box.id for box in scene.boxes if box.kind == "placeholder"] == ["op_mix0"]
    assert (len(scene.frames), scene.legend) == (1, "4 placeholders: no lowering")
    apart = build_scene(layers(4), placeholders={"mix3"}, fold=True)
    assert [box.id for box in apart.boxes if box.kind == "placeholder"] == ["op_mix3"]
    assert apart.frames[0].title.startswith("model.layers.0\N{EN DASH}2 ")


def test_gaps_in_the_capture_are_placeholders() -> None:
    ir = layers(1)
    ir.node("mix0").op_type = "opaque.numpy"
    assert [box.lines[0] for box in build_scene(ir).boxes if box.kind == "placeholder"] == ["opaque.numpy"]
    assert ir_to_mermaid(ir).endswith("color:#7f1010")


def test_decisions_are_diamonds() -> None:
    """They show the assumption and the source line."""
    ir = layers(1)
    attrs = {"assumed": True, "place": "model.py:12"}
    decision = OpNode("choice", "torch_ir.decision.default", [ir.node("mask").outputs[0]], [], attrs, args=["value"])
    ir.nodes.append(decision)
    scene = build_scene(ir)
    assert '    op_choice{"assumed True<br/>model.py:12"}' in to_mermaid(scene).splitlines()
    assert re.search(r"op_choice \[label=.*assumed True.*shape=diamond", to_dot(scene))


# -- layers as nodes --------------------------------------------------------------------------------------------------


def module_level() -> IR:
    ir = layers(3)
    ir.modules = {f"model.layers.{index}.fc": "torch.nn.modules.linear.Linear" for index in range(3)}
    ir.modules |= {"embed": "torch.nn.modules.sparse.Embedding", "head": "mylib.Head"}
    return ir.at_level("module")


def test_layers_say_class_and_path() -> None:
    """The path is relative to the frame."""
    scene = build_scene(module_level().check(), fold=True)
    lines = {box.id: box.lines for box in scene.boxes}
    assert lines["op_embed"] == ("Embedding", "embed", "2x4")
    assert lines["op_model_layers_0_fc"] == ("Linear", "fc", "2x4")


@pytest.mark.parametrize(
    ("op_type", "inside", "family"),
    [
        ("torch.nn.Linear", ["aten.linear.default"], "matmul"),
        ("mylib.RMSNorm", ["aten.pow.Tensor_Scalar", "aten.mean.dim", "aten.mul.Tensor"], "normalisation"),
        ("mylib.Mixer", ["aten.add.Tensor", "aten.view.default", "aten.relu.default"], "activation"),
        ("mylib.Odd", ["mylib.thing.default"], "other"),
    ],
)
def test_layers_have_the_colour_of_what_counts_inside(op_type: str, inside: list[str], family: str) -> None:
    x = tensor("x")
    nodes = []
    for index, op in enumerate(inside):
        nodes.append(OpNode(f"n{index}", op, [x if not nodes else nodes[-1].outputs[0]], [tensor(f"n{index}")]))
    ir = IR(nodes, [x], [nodes[-1].outputs[0]])
    assert Families().of(fold(ir, ir.nodes, "layer", op_type), ir.functions) == family


def test_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`--level` and `--leaf` select what a node represents, `--fold` draws equal layers once."""
    file = str(tmp_path / "model.json")
    ir = layers(3)
    ir.modules = {f"model.layers.{index}": "mylib.Layer" for index in range(3)}
    ir.save(file)
    assert main(["visualize", file, "--fold"]) == 0
    assert capsys.readouterr().out.rstrip("\n") == to_mermaid(build_scene(ir, fold=True))
    assert main(["visualize", file, "--leaf", "Layer", "--fold", "-o", str(tmp_path / "layers.dot")]) == 0
    assert "model.layers.0\N{EN DASH}2" in (tmp_path / "layers.dot").read_text(encoding="utf-8")
    assert main(["info", file, "--leaf", "Layer"]) == 0
    assert "  mylib.Layer: 3\n" in capsys.readouterr().out
    assert main(["info", file, "--level", "modules"]) == 1
    assert "unknown level 'modules'" in capsys.readouterr().err


def test_what_is_computed_of_weights_alone_is_a_weight() -> None:
    """In a folded picture of an optimised model merged weights do not stand between layers; fused calls are whole."""
    from tests.test_optimise_blocks import Tower
    from torch_ir import optimize

    better, _ = optimize(captured(Tower().eval(), torch.randn(2, 5, 8)), "full")
    assert "aten.cat.default" in {node.op_type for node in better.nodes}
    scene = build_scene(better, fold=True)
    assert not any("cat" in box.lines for box in scene.boxes)
    assert [frame.title for frame in scene.frames] == ["blocks.0\N{EN DASH}3  \N{MULTIPLICATION SIGN}4"]
