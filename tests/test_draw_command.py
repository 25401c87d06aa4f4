"""`torch-ir draw`: readable by default, `visualize` as documented, one-line errors."""

import json
import sys
from pathlib import Path

import pytest

from tests.test_draw import DOCUMENTED, mlp
from tests.test_draw_pairs import without_mix
from tests.test_draw_views import model
from torch_ir.cli.dispatch import main
from torch_ir.draw.mermaid import to_mermaid
from torch_ir.draw.scene import build_scene
from torch_ir.ir import IR, OpNode, TensorMeta


@pytest.fixture
def file(tmp_path: Path) -> str:
    model(60).save(tmp_path / "model.json")
    return str(tmp_path / "model.json")


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    status = main(list(words))
    said = capsys.readouterr()
    return status, said.out.rstrip("\n"), said.err.rstrip("\n")


def test_a_large_graph_is_drawn_legibly_and_that_is_said(capsys, file) -> None:
    """On stderr, so that the drawing can be piped; `--quiet` prints nothing."""
    status, out, err = run(capsys, "draw", file)
    assert (status, out) == (0, to_mermaid(build_scene(model(60), 0, fold=True)))
    assert err == "183 nodes in 8 boxes: equal layers are drawn once; --max-nodes 0 draws every node"
    assert run(capsys, "draw", file, "--quiet")[2] == ""
    assert run(capsys, "draw", file, "--max-nodes", "0")[1] == to_mermaid(build_scene(model(60), 0))


def test_a_picture_of_many_boxes_is_announced(capsys, tmp_path, monkeypatch) -> None:
    """Before Graphviz starts, with alternatives; text formats print nothing, nor does `--quiet`."""
    model(350).save(tmp_path / "large.json")
    said: list[str] = []

    def picture(dot: str, kind: str, patience: int) -> bytes:
        said.append(capsys.readouterr().err.rstrip("\n"))
        return b""

    monkeypatch.setattr(sys.modules["torch_ir.draw.picture_files"], "picture", picture)
    words = ["draw", str(tmp_path / "large.json"), "-o", str(tmp_path / "large.png")]
    for more in (["--max-nodes", "0"], ["--max-nodes", "0", "--quiet"], ["--max-nodes", "100"]):
        assert main([*words, *more, "--no-weights"]) == 0
    hint = (
        "Graphviz may need minutes for 1055 boxes; --depth, --fold or --focus draw less, "
        "and `torch-ir explore` shows every node at once"
    )
    assert said == [hint, "", ""]
    assert run(capsys, *words[:2], "--max-nodes", "0", "--format", "dot")[2] == ""


def test_visualize_is_as_documented(capsys, file, tmp_path) -> None:
    """30 nodes with weights, whatever `draw` would choose."""
    assert run(capsys, "visualize", file) == (0, to_mermaid(build_scene(model(60))), "")
    mlp().save(tmp_path / "mlp.json")
    assert run(capsys, "visualize", str(tmp_path / "mlp.json"))[1] == DOCUMENTED
    assert run(capsys, "draw", str(tmp_path / "mlp.json"))[1] == DOCUMENTED


def test_options_are_those_of_a_scene(capsys, file) -> None:
    _, out, _ = run(capsys, "draw", file, "--depth", "3", "--fold")
    assert out == to_mermaid(build_scene(model(60), depth=3, fold=True))
    _, out, _ = run(capsys, "draw", file, "--focus", "mix7", "--radius", "1", "--no-weights")
    assert out == to_mermaid(build_scene(model(60), focus="mix7", radius=1, include_weights=False))
    _, out, _ = run(capsys, "draw", file, "--depth", "1", "--weights", "--format", "md")
    assert out == f"```mermaid\n{to_mermaid(build_scene(model(60), depth=1, include_weights=True))}\n```"


def costly(tmp_path: Path) -> str:
    """Two products, of which the second is three times as large, over an open size."""
    from torch_ir.ir import Symbol

    x = TensorMeta("x", ("batch", 4), "float32")
    weights = [TensorMeta(f"w{index}", shape, "float32") for index, shape in enumerate([(4, 4), (12, 4)])]
    outs = [TensorMeta("a", ("batch", 4), "float32"), TensorMeta("b", ("batch", 12), "float32")]
    nodes = []
    for read, weight, out in zip((x, outs[0]), weights, outs, strict=True):
        attrs = {"bias": None}
        nodes.append(OpNode(out.name, "aten.linear.default", [read, weight], [out], attrs, args=["input", "weight"]))
    ir = IR(nodes, [x], [outs[1]], weights, symbols=[Symbol("batch", 1, 64, tensor=x, dim=0)])
    ir.check().save(tmp_path / "costly.json")
    return str(tmp_path / "costly.json")


def test_heat_is_computed(capsys, tmp_path) -> None:
    """FLOPs or bytes of each node, at the sizes that are set."""
    file = costly(tmp_path)
    _, out, _ = run(capsys, "draw", file, "--heat", "flops", "--set", "batch=8")
    assert 'op_a["linear<br/>batch\N{MULTIPLICATION SIGN}4<br/>25 #37;"]' in out
    assert 'op_b["linear<br/>batch\N{MULTIPLICATION SIGN}12<br/>75 #37;"]' in out
    assert 'scale["1.02 kFLOPs in all<br/>light: 0<br/>dark: 768 FLOPs per box"]' in out
    assert 'dark: 704 B per box"]' in run(capsys, "draw", file, "--heat", "bytes", "--set", "batch=8")[1]


def test_two_files_side_by_side(capsys, tmp_path) -> None:
    """Titles are the file names; the line below the model shows the savings."""
    pytest.importorskip("pygraphviz")
    before, after, _ = without_mix(2, 1)
    before.save(tmp_path / "before.json")
    after.save(tmp_path / "after.json")
    words = [str(tmp_path / "before.json"), "--against", str(tmp_path / "after.json")]
    status, out, _ = run(capsys, "draw", *words)
    assert status == 0
    assert 'subgraph before["before.json"]' in out
    assert 'subgraph after["after.json"]' in out
    assert 'heading["Layers<br/>per run: nodes 9 #8594; 8"]' in out  # the cost of these linear layers is unknown
    assert "style before_op_mix1 fill:#fbd5d5,stroke:#c62828" in out
    assert run(capsys, "draw", *words, "-o", str(tmp_path / "pair.png"))[0] == 0
    assert (tmp_path / "pair.png").read_bytes().startswith(b"\x89PNG")


def test_the_format_may_be_told(capsys, file, tmp_path) -> None:
    """Whatever the file's name, or without a file."""
    pytest.importorskip("pygraphviz")
    assert run(capsys, "draw", file, "--depth", "1", "--format", "dot")[1].startswith('digraph "Layers" {')
    assert run(capsys, "draw", file, "--depth", "1", "--format", "svg", "-o", str(tmp_path / "x.txt"))[0] == 0
    assert "<svg" in (tmp_path / "x.txt").read_text(encoding="utf-8")
    words = [costly(tmp_path), "--format", "model-explorer", "--heat", "flops", "--set", "batch=8"]
    status, out, _ = run(capsys, "draw", *words)
    assert status == 0
    attrs = {node["id"]: node.get("attrs") for node in json.loads(out)["graphs"][0]["nodes"]}
    assert {"key": "flops", "value": "256"} in attrs["a"]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--radius", "2"], "--radius is the distance from --focus NAME; add --focus"),
        (["--focus", "mix99"], "unknown node, input or module 'mix99'; did you mean 'mix9'?"),
        (["--focus", "mix1", "--radius", "-1"], "the radius must be at least 0, not -1"),
        (["--depth", "0"], "the depth must be at least 1, not 0: the model itself would be one box"),
        (["--dim", "batch=8"], "--dim gives sizes for costs; add --heat or --against"),
        (["--heat", "flops", "--dim", "batch=8"], "unknown size 'batch'; open sizes: none"),
        (["--heat", "flops", "--against", "x.json"], "--heat and --against both colour boxes; choose one"),
        (["--against", "nothing.json"], "cannot read nothing.json: No such file"),
        (["--format", "png"], "a PNG needs a file: -o FILE"),
        (["--format", "model-explorer", "--against", "x"], "a Model Explorer file contains one model"),
    ],
)
def test_mistakes_are_one_sentence(capsys, file, words, told) -> None:
    status, out, err = run(capsys, "draw", file, *words)
    assert (status, out) == (1, "")
    assert told in err
    assert len(err.splitlines()) == 1


def test_an_unknown_cost_names_the_nearest(capsys, file) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["draw", file, "--heat", "flop"])
    assert caught.value.code == 2
    assert "did you mean 'flops'?" in capsys.readouterr().err


def test_drawing_needs_no_torch(tmp_path) -> None:
    """Not for depth, focus, heat, a comparison or Model Explorer."""
    import subprocess
    import sys

    code = """
import sys
from torch_ir.cli.dispatch import main
file, folder = sys.argv[1:]
for words in (["--depth", "2"], ["--focus", "a"], ["--heat", "flops"], ["--against", file]):
    assert main(["draw", file, *words, "-o", f"{folder}/x.mmd"]) == 0
assert main(["draw", file, "--format", "model-explorer", "-o", f"{folder}/x.json"]) == 0
sys.exit("torch" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code, costly(tmp_path), str(tmp_path)], cwd=Path(__file__).parents[1])
    assert done.returncode == 0
