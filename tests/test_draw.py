"""Drawings: the documented Mermaid text byte for byte, hostile names escaped, files that viewers accept."""

import re
import struct
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from torch_ir.draw import generate_op_distribution_pie, ir_to_mermaid, render
from torch_ir.draw import render as render_function
from torch_ir.draw.dot import to_dot
from torch_ir.draw.families import family_of
from torch_ir.draw.scene import build_scene
from torch_ir.errors import DrawError, MissingExtraError, SerializationError
from torch_ir.ir import IR, OpNode, TensorMeta

HOSTILE = [
    'quo"te', "end", "`tick`", "a[b]", "a]b", "line\nbreak", "%%{init: {}}%%", "a%%b", "direction TB", "direction  LR",
    "#quot;", "<script>x</script>", "a<br/>b", "$$x$$", "back\\nslash", "a|b", "style a:#b;", "a;b", "--> b", "{{x}}",
    "@{shape: x}", "---\ntitle: x\n---", "", " ", "\x00", "\u2028", "\uce35",
]  # fmt: skip
DOCUMENTED = r"""flowchart TD
    input_x[/"Input: x<br/>1x4"/]
    op_linear["linear<br/>1x8"]
    input_x -->|"1x4"| op_linear
    w_p_fc1_weight[/"p_fc1_weight<br/>8x4"/]
    w_p_fc1_weight -.->|"8x4"| op_linear
    w_p_fc1_bias[/"p_fc1_bias<br/>8"/]
    w_p_fc1_bias -.->|"8"| op_linear
    op_relu["relu<br/>1x8"]
    op_linear -->|"1x8"| op_relu
    op_linear_1["linear<br/>1x2"]
    op_relu -->|"1x8"| op_linear_1
    w_p_fc2_weight[/"p_fc2_weight<br/>2x8"/]
    w_p_fc2_weight -.->|"2x8"| op_linear_1
    w_p_fc2_bias[/"p_fc2_bias<br/>2"/]
    w_p_fc2_bias -.->|"2"| op_linear_1
    output_0[\"Output<br/>1x2"/]
    op_linear_1 --> output_0"""


def tensor(name: str, *shape: int | str) -> TensorMeta:
    return TensorMeta(name, shape, "float32")


def mlp() -> IR:
    """The model of the documentation."""
    x, hidden, relu, out = tensor("x", 1, 4), tensor("linear", 1, 8), tensor("relu", 1, 8), tensor("linear_1", 1, 2)
    sizes = {"fc1.weight": (8, 4), "fc1.bias": (8,), "fc2.weight": (2, 8), "fc2.bias": (2,)}
    names = {f"p_{key.replace('.', '_')}": key for key in sizes}
    read = {name: tensor(name, *sizes[key]) for name, key in names.items()}
    nodes = [
        OpNode("linear", "aten.linear.default", [x, read["p_fc1_weight"], read["p_fc1_bias"]], [hidden]),
        OpNode("relu", "aten.relu.default", [hidden], [relu]),
        OpNode("linear_1", "aten.linear.default", [relu, read["p_fc2_weight"], read["p_fc2_bias"]], [out]),
    ]
    return IR(nodes, [x], [out], [tensor(key, *shape) for key, shape in sizes.items()], names, model_name="SimpleMLP")


def chain(names: list[str]) -> IR:
    """One node per name, each with an input and a weight of that name."""
    inputs = [tensor(f"x{name}", 1, name) for name in names]
    weights = [tensor(f"w{name}", 3) for name in names]
    nodes: list[OpNode] = []
    last = inputs[0]
    for index, name in enumerate(names):
        made = tensor(f"made{index}", 2, name)
        nodes.append(OpNode(name or "empty", name, [last, inputs[index], weights[index]], [made]))
        last = made
    return IR(nodes, inputs, [last], weights, model_name='hostile "name" \\ `x`')


def test_mermaid_is_the_documented_text():
    assert ir_to_mermaid(mlp()) == DOCUMENTED


def test_weights_can_be_left_out():
    kept = [line for line in DOCUMENTED.splitlines() if "w_p_" not in line]
    assert ir_to_mermaid(mlp(), include_weights=False).splitlines() == kept


def test_a_cut_graph_says_how_much_is_missing():
    lines = ir_to_mermaid(mlp(), max_nodes=2).splitlines()
    assert lines[-2:] == [r'    output_0[\"Output<br/>1x2"/]', '    note["... 1 more nodes ..."]']
    assert not any("linear_1" in line for line in lines)


@pytest.mark.parametrize("everything", [0, -1, None, 3, 1000])
def test_all_nodes_are_drawn_on_demand(everything):
    assert ir_to_mermaid(mlp(), max_nodes=everything) == DOCUMENTED


def test_shared_weights_have_one_box():
    x, w, a, b = tensor("x", 2, 2), tensor("w", 2, 2), tensor("a", 2, 2), tensor("b", 2, 2)
    ir = IR([OpNode("a", "aten.mm.default", [x, w], [a]), OpNode("b", "aten.mm.default", [a, w], [b])], [x], [b], [w])
    text = ir_to_mermaid(ir)
    assert text.count('w_w[/"w<br/>2x2"/]') == 1
    assert text.count('w_w -.->|"2x2"|') == 2


def test_an_input_or_a_weight_may_be_an_output():
    x, w = tensor("x", 2), tensor("w", 3)
    lines = ir_to_mermaid(IR([], [x], [x, w], [w])).splitlines()
    assert "    input_x --> output_0" in lines
    assert "    w_w -.-> output_1" in lines


def test_shapes_may_be_symbolic_or_absent():
    x, y = tensor("x", "batch", "2*seq + 1"), tensor("y")
    lines = ir_to_mermaid(IR([OpNode("sum_1", "aten.sum.dim_IntList", [x], [y])], [x], [y])).splitlines()
    assert lines[1] == '    input_x[/"Input: x<br/>batch\N{MULTIPLICATION SIGN}(2*seq + 1)"/]'
    assert lines[2] == '    op_sum_1["sum.dim_IntList<br/>scalar"]'
    assert lines[-2] == r'    output_0[\"Output<br/>scalar"/]'


def test_hostile_names_cannot_break_a_flow_chart():
    """Every line is one box or one edge, ids are plain and unique, and inside the quotes nothing special is left."""
    lines = ir_to_mermaid(chain(HOSTILE), max_nodes=0).splitlines()
    box = re.compile(r'    (\w+)(?:\[/|\[\\|\[)"([^"]*)"(?:/\]|\])', re.ASCII)
    edge = re.compile(r'    (\w+) (?:-->|-\.->)(?:\|"([^"]+)"\|)? (\w+)', re.ASCII)
    boxes = [found for line in lines[1:] if (found := box.fullmatch(line))]
    edges = [found for line in lines[1:] if (found := edge.fullmatch(line))]
    ids = [found[1] for found in boxes]
    assert len(boxes) + len(edges) == len(lines) - 1
    assert len(boxes) == 3 * len(HOSTILE) + 1
    assert len(set(ids)) == len(ids)
    assert {end for found in edges for end in (found[1], found[3])} <= set(ids)
    for label in [found[2].replace("<br/>", "") for found in [*boxes, *edges] if found[2]]:
        assert not re.search(r'[<>"`\\%$&{}]|direction\s|#(?!\d+;)', label), label


def test_pie_counts_operators():
    assert generate_op_distribution_pie(mlp()) == (
        'pie showData\n    title "Operator Distribution"\n    "linear" : 2\n    "relu" : 1'
    )
    assert generate_op_distribution_pie(mlp(), top_n=1).splitlines()[-2:] == ['    "linear" : 2', '    "Others" : 1']
    hostile = generate_op_distribution_pie(chain(HOSTILE), top_n=100).splitlines()
    assert all(re.fullmatch(r'    "[^"\\]*" : \d+', line) for line in hostile[2:])


@pytest.mark.parametrize(
    ("op_type", "family"),
    [
        ("aten.conv2d.default", "matmul"),
        ("aten.relu_.default", "activation"),
        ("aten.add.Tensor", "elementwise"),
        ("aten.batch_norm.default", "normalisation"),
        ("aten.view.default", "movement"),
        ("aten.mean.dim", "reduction"),
        ("aten.scaled_dot_product_attention.default", "attention"),
        ("_c10d_functional.all_reduce.default", "communication"),
        ("_c10d_functional.wait_tensor.default", "communication"),
        ("mylib.thing.default", "other"),
        ("", "other"),
    ],
)
def test_families(op_type, family):
    assert family_of(op_type) == family


def test_dot_shows_every_box_and_ties_a_cut_graph_together():
    dot = to_dot(build_scene(mlp(), max_nodes=2))
    assert "p_fc1_bias" in dot
    assert "op_relu -> note [style=dashed]" in dot
    assert "note -> output_0 [style=dashed]" in dot


def test_placeholders_are_red():
    scene = build_scene(mlp(), placeholders={"relu"})
    assert re.search(r'op_relu \[.*color="#c62828"', to_dot(scene))
    assert [box.id for box in scene.boxes if box.kind == "placeholder"] == ["op_relu"]


def test_png_and_svg_are_drawn(tmp_path):
    render(mlp(), tmp_path / "new" / "mlp.png")
    data = (tmp_path / "new" / "mlp.png").read_bytes()
    width, height = struct.unpack(">II", data[16:24])
    assert data.startswith(b"\x89PNG\r\n\x1a\n")
    assert 300 < width < 1200
    assert 400 < height < 2000
    render(chain(HOSTILE), tmp_path / "hostile.svg", max_nodes=0)
    root = ElementTree.parse(tmp_path / "hostile.svg").getroot()
    shown = [element.text for element in root.iter("{http://www.w3.org/2000/svg}text")]
    assert "<script>x</script>" in shown
    assert not list(root.iter("{http://www.w3.org/2000/svg}script"))
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_text_needs_no_system_fonts(tmp_path, monkeypatch):
    """Without any font, all letters are boxes of one width; with the shipped one, `i` is narrower than `m`."""
    if sys.platform != "linux":
        pytest.skip("fonts are found through fontconfig on Linux only")
    (tmp_path / "fonts.conf").write_text('<?xml version="1.0"?><fontconfig></fontconfig>')
    monkeypatch.setenv("FONTCONFIG_PATH", str(tmp_path))
    monkeypatch.delenv("FONTCONFIG_FILE", raising=False)
    widths = []
    for letter in "im":
        name = letter * 40
        render(IR([], [tensor(name, 2)], []), tmp_path / "x.png")
        widths.append(struct.unpack(">I", (tmp_path / "x.png").read_bytes()[16:20])[0])
    assert widths[0] * 2 < widths[1]


def test_other_suffixes_are_text(tmp_path):
    for name in ("a.mmd", "a.md", "a.dot", "a.txt", "a"):
        render(mlp(), tmp_path / name)
    assert (tmp_path / "a.mmd").read_text() == (tmp_path / "a.txt").read_text() == DOCUMENTED
    assert (tmp_path / "a").read_text() == DOCUMENTED
    assert (tmp_path / "a.md").read_text() == f"```mermaid\n{DOCUMENTED}\n```\n"
    assert (tmp_path / "a.dot").read_text().startswith('digraph "SimpleMLP" {')


def test_without_graphviz_the_extra_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.setattr("shutil.which", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"torch-ir\[draw\]"):
        render(mlp(), tmp_path / "x.svg")


def test_a_dot_program_does_as_well(tmp_path, monkeypatch):
    program = tmp_path / "dot"
    program.write_text(f"#!{sys.executable}\nimport sys\nprint(sys.argv[1:], sys.stdin.read()[:7])\n")
    program.chmod(0o755)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.setattr("shutil.which", lambda name: str(program))
    render(mlp(), tmp_path / "x.png")
    assert (tmp_path / "x.png").read_text() == "['-Tpng', '-Gdpi=144'] digraph\n"


def test_failures_are_one_sentence(tmp_path, monkeypatch):
    with pytest.raises(SerializationError, match="cannot write"):
        render(mlp(), Path(__file__) / "x.svg")
    module = sys.modules[render_function.__module__]
    monkeypatch.setattr(module, "to_dot", lambda scene, legend: "digraph {")
    with pytest.raises(DrawError, match="cannot draw the graph: Graphviz exited with status 1"):
        render(mlp(), tmp_path / "x.svg")
    assert not (tmp_path / "x.svg").exists()


def test_drawing_does_not_import_torch():
    code = "import sys, torch_ir.draw; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parents[1]).returncode == 0
