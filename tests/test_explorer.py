"""The explorer without a browser: the hierarchy, the data of a page, and the safety of the file."""

import base64
import gzip
import hashlib
import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import torch_ir
from tests.explored import HOSTILE, Growing, asserting, decoder, hostile, merged_weights, sharded, with_call
from tests.graphs import everything, mlp, tensor
from torch_ir.analysis import cost
from torch_ir.cli.dispatch import main
from torch_ir.explorer.hierarchy import Group, hierarchy, name_of
from torch_ir.ir import IR, OpNode

ASSETS = Path(torch_ir.__file__).parent / "explorer" / "assets"


def outline(group: Group, depth: int = 9) -> list[Any]:
    """Names and kinds of a group's members to a given depth; nodes by name."""
    found: list[Any] = []
    for item in group.items:
        if isinstance(item, OpNode):
            found.append(item.name)
        else:
            outer = group.path if group.kind not in ("run", "turn") else ""
            inner = [outline(item, depth - 1)] if depth else []
            found.append((item.kind, name_of(item, outer), *inner))
    return found


def record_of(path: Path) -> dict[str, Any]:
    """The data of a page, as its code reads them."""
    packed = re.search(r'id="data">([A-Za-z0-9+/=]*)</script>', path.read_text())
    assert packed is not None
    record: dict[str, Any] = json.loads(gzip.decompress(base64.b64decode(packed[1])))
    return record


def page_of(ir: IR, folder: Path, **options: Any) -> Path:
    path = folder / "page.html"
    torch_ir.explore(ir, path, **options)
    return path


def grouped(ir: IR) -> Group:
    return hierarchy(ir, lambda node: None)


def test_equal_layers_are_one_run_of_equal_form() -> None:
    """`layers` is a plain list, represented by its one run; parts of a run have one form, and chains are marked."""
    top = grouped(decoder(5, plain=2))
    (run,) = top.items
    assert isinstance(run, Group)
    assert (run.kind, name_of(run, ""), len(run.items), run.is_chain) == ("run", "layers.0\N{EN DASH}4", 5, True)
    assert len({part.form for part in run.items if isinstance(part, Group)}) == 1
    first = run.items[0]
    assert isinstance(first, Group)
    assert [(kind, name) for kind, name in outline(first, 0)[::2]] == [("module", "attn"), ("module", "mlp")]


def test_a_layer_that_is_marked_is_not_equal() -> None:
    """A red or differing layer must not be folded into another one."""
    ir = decoder(4, plain=0)
    red = next(node.name for node in ir.nodes if node.origin.module == "layers.2.attn")
    top = hierarchy(ir, lambda node: node.name == red)
    names = [name_of(item, "") for item in top.items if isinstance(item, Group)]
    assert names == ["layers"]
    (layers,) = top.items
    assert isinstance(layers, Group)
    assert [name for _, name in outline(layers, 0)] == ["0\N{EN DASH}1", "2", "3"]


def test_lists_that_are_run_in_turn_give_way_to_what_they_hold() -> None:
    """`convs.0, norms.0, convs.1, norms.1` as two boxes that read each other would be a circle."""
    graph, last = Growing(), tensor("x", 4, 8)
    first = last
    for at in range(2):
        for name, op in (("convs", "mul"), ("norms", "sub" if at else "add")):
            last = graph.op(op, [last, last], f"{name}.{at}")
            last = graph.op("mul", [last, last], f"{name}.{at}")
    ir = IR(graph.nodes, [first], [last])
    names = [name_of(item, "") for item in grouped(ir).items]
    assert names == ["convs.0", "norms.0", "convs.1", "norms.1"]


def test_layers_that_differ_in_turn_repeat_together() -> None:
    """Two of one kind and one of another, three times over, are one run of three turns."""
    graph, last = Growing(), tensor("x", 4, 8)
    first = last
    for layer in range(9):
        last = graph.op("mul" if layer % 3 else "add", [last, last], f"layers.{layer}")
        last = graph.op("add", [last, last], f"layers.{layer}")
    (run,) = grouped(IR(graph.nodes, [first], [last])).items
    assert isinstance(run, Group)
    assert [(item.kind, len(item.items)) for item in run.items if isinstance(item, Group)] == [("turn", 3)] * 3


def test_what_depends_on_weights_alone_is_put_together() -> None:
    """Folded weights are many uninteresting nodes; they are one collapsed group."""
    top = grouped(merged_weights())
    assert outline(top) == [("once", "computed once", ["add_1", "mul_2"]), "linear_0", "add_3"]


def test_a_long_level_is_cut_into_chunks() -> None:
    """A layout of thousands of boxes is too slow; a graph without modules has no other structure."""
    graph, last = Growing(), tensor("x", 4, 8)
    first = last
    for _ in range(1000):
        last = graph.op("mul", [last, last], "")
    top = grouped(IR(graph.nodes, [first], [last]))
    assert [item.kind for item in top.items if isinstance(item, Group)] == ["chunk"] * 10


def test_costs_in_a_page_are_those_of_the_analysis(tmp_path: Path) -> None:
    """Node by node, and for groups their sums."""
    ir = decoder(3, plain=2)
    graph = record_of(page_of(ir, tmp_path))["sides"][0]["graphs"][-1]
    costs = cost(ir)
    told = [list(each.amounts()) for each in (*costs.nodes, costs)]
    assert graph["nodes"]["work"] == told[:-1]
    assert graph["groups"][-1]["work"] == told[-1]


def test_costs_of_one_run_leave_out_what_is_computed_once(tmp_path: Path) -> None:
    """As in the analysis; the group of these nodes has its own costs."""
    ir = merged_weights()
    graph = record_of(page_of(ir, tmp_path))["sides"][0]["graphs"][-1]
    costs = cost(ir)
    once, root = (next(group for group in graph["groups"] if group["kind"] == kind) for kind in ("once", "graph"))
    assert root["work"] == list(costs.per_run.amounts())
    assert once["work"] == list(costs.once.amounts())
    assert [ir.nodes[at].name for at in graph["once"]] == ["add_1", "mul_2"]


def test_open_sizes_are_expressions_until_they_are_given(tmp_path: Path) -> None:
    """Costs with dynamic sizes are expressions, with a number for comparison."""
    x, y = tensor("x", "batch", 4), tensor("y", "batch", 4)
    ir = IR([OpNode("y", "aten.relu.default", [x], [y], args=["self"])], [x], [y], symbols=[_batch(x)])
    side = record_of(page_of(ir, tmp_path))["sides"][0]
    assert side["graphs"][0]["nodes"]["work"] == [[0, 0, "16*batch", "16*batch", 0]]
    assert side["weights"] == {"16*batch": 16384.0}
    side = record_of(page_of(ir, tmp_path, sizes={"batch": 8}))["sides"][0]
    assert side["graphs"][0]["nodes"]["work"] == [[0, 0, 128, 128, 0]]


def _batch(x: Any) -> Any:
    return torch_ir.Symbol("batch", 1, 64, x, 0)


def test_equal_graphs_give_equal_bytes(tmp_path: Path) -> None:
    """A page under version control changes only when the graph does."""
    first = page_of(decoder(3), tmp_path).read_bytes()
    assert page_of(IR.from_json(decoder(3).to_json()), tmp_path).read_bytes() == first


def test_no_text_of_a_graph_is_in_the_markup(tmp_path: Path) -> None:
    """Whatever the model's name, the only script is ours: its digest is in the policy, and the policy comes first."""
    html = page_of(hostile(), tmp_path).read_text()
    assert HOSTILE not in html
    assert "alert(" not in html
    script = re.findall(r"<script>(.*?)</script>", html, re.DOTALL)
    assert len(script) == 1
    digest = base64.b64encode(hashlib.sha256(script[0].encode()).digest()).decode()
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', html)
    assert policy is not None
    assert policy[1].startswith(f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'sha256-")
    assert html.index("Content-Security-Policy") < html.index("<style>")


def test_half_a_surrogate_pair_is_shown_as_something(tmp_path: Path) -> None:
    """Names may contain lone surrogates, which a file cannot; the page is written nevertheless."""
    ir = mlp()
    ir.model_name = "\ud800"
    assert "?" in record_of(page_of(ir, tmp_path))["texts"][0]


@pytest.mark.parametrize("ir", [IR([], [], []), everything(), with_call(), mlp()], ids=["empty", "all", "call", "mlp"])
def test_every_graph_has_a_page(ir: IR, tmp_path: Path) -> None:
    """Each node of each graph is in exactly one group."""
    for graph in record_of(page_of(ir, tmp_path))["sides"][0]["graphs"]:
        items = [item for group in graph["groups"] for item in group["items"] if item >= 0]
        assert sorted(items) == list(range(len(graph["nodes"].get("name", []))))


def test_functions_that_nobody_calls_are_entry_points(tmp_path: Path) -> None:
    """A file of a language model contains `decode` besides the graph itself, which is named by its role."""
    assert entries_of(with_functions("decode"), tmp_path) == ["prefill", "decode"]
    assert entries_of(with_functions("encode"), tmp_path) == ["forward", "encode"]
    assert entries_of(with_functions("prefill", "decode"), tmp_path) == ["forward", "prefill", "decode"]


def with_functions(*names: str) -> IR:
    ir = mlp()
    ir.functions.update((name, mlp()) for name in names)
    return ir


def entries_of(ir: IR, folder: Path) -> list[str]:
    record = record_of(page_of(ir, folder))
    return [record["texts"][name] for name, _ in record["sides"][0]["entries"]]


def test_what_only_asserts_is_told_apart(tmp_path: Path) -> None:
    """Assertions and nodes that only they need; not nodes of a result, nor unused ones."""
    graph = record_of(page_of(asserting(), tmp_path))
    texts, nodes = graph["texts"], graph["sides"][0]["graphs"][0]["nodes"]
    kinds = {texts[name]: texts[kind] for name, kind in zip(nodes["name"], nodes["kind"], strict=True)}
    assert kinds == {"gt": "check", "all": "check", "assert": "check", "relu": "op", "dead": "op", "meta": "check"}


def test_a_sharded_graph_tells_its_mesh_and_placements(tmp_path: Path) -> None:
    """Each of several axes is named; a tensor without placement shows none."""
    record = record_of(page_of(sharded(), tmp_path))
    texts, side = record["texts"], record["sides"][0]
    assert [texts[text] for text in side["mesh"]] == ["tp = 2"]
    tensors = side["graphs"][0]["tensors"]
    told = [texts[text] if text >= 0 else None for text in tensors["placement"]]
    named = dict(zip([texts[name] for name in tensors["name"]], told, strict=True))
    assert named["x"] == "replicate"
    assert named["linear"] == "partial(sum)"
    assert named["all_reduce"] is None
    both = IR([], [tensor("x", 4, 8)], [], mesh={"tp": 2, "dp": 2})
    both.graph_inputs[0].placement = ("shard(0)", "replicate")
    record = record_of(page_of(both, tmp_path))
    assert "tp: shard(0), dp: replicate" in record["texts"]


def test_stages_of_a_pipeline_go_by_their_names(tmp_path: Path) -> None:
    """Their operator is the same for all."""
    record = record_of(page_of(torch_ir.split(mlp(), 2, anywhere=True), tmp_path))
    labels = record["sides"][0]["graphs"][-1]["nodes"]["label"]
    assert [record["texts"][label] for label in labels] == ["stage0", "stage1"]


def test_two_graphs_are_paired_node_by_node(tmp_path: Path) -> None:
    """Rows contain the positions of a node on both sides, and its status."""
    before, after = mlp(), mlp()
    after.nodes[1].op_type = "aten.tanh.default"
    record = record_of(page_of(before, tmp_path, against=after))
    texts = record["texts"]
    rows = [(texts[status], first, second) for status, first, second, _ in record["differences"]]
    assert ("same", 0, 0) in rows
    assert {("removed", 1, -1), ("added", -1, 1)} <= set(rows)


def test_the_library_is_the_one_that_was_vendored() -> None:
    """Version, licence and digest of dagre are written down, and the file is that file."""
    told = json.loads((ASSETS / "dagre.json").read_text())
    assert hashlib.sha256((ASSETS / "dagre.min.js").read_bytes()).hexdigest() == told["sha256"]
    assert told["version"] in (ASSETS / "dagre.min.js").read_text()
    assert (ASSETS / told["licence_file"]).read_text().startswith("Copyright")
    assert told["licence"] == "MIT"


def test_scripts_are_short_and_make_no_markup() -> None:
    """Scripts insert text as text, never as markup, and send no requests."""
    for path in ASSETS.glob("*.js"):
        if path.name != "dagre.min.js":
            text = path.read_text()
            assert len(text.splitlines()) <= 300, path.name
            assert not any(line.count("`") % 2 for line in text.splitlines()), "a text over several lines loses spaces"
            assert not re.search(r"innerHTML|outerHTML|insertAdjacent|document\.write|\beval\(|fetch\(|XMLHttp", text)


def test_the_verb_writes_a_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One line with nodes, size and path; without `-o`, the page is next to the graph."""
    mlp().save(tmp_path / "mlp.json")
    target = tmp_path / "page.html"
    assert main(["explore", str(tmp_path / "mlp.json"), "-o", str(target)]) == 0
    assert capsys.readouterr().out == f"3 nodes: {target}, {target.stat().st_size / 1e3:.0f} kB\n"
    assert main(["explore", str(tmp_path / "mlp.json"), "--against", str(tmp_path / "mlp.json")]) == 0
    assert capsys.readouterr().out.startswith(f"3 and 3 nodes: {tmp_path / 'mlp.html'}, ")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--function", "decode"], "the graph has no function 'decode'; functions: none"),
        (["--set", "batch=4"], "unknown size 'batch'; open sizes: none"),
        (["--against", "nothing.json"], "cannot read nothing.json: No such file or directory"),
    ],
)
def test_mistakes_are_one_sentence(
    words: list[str], told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """And no page is left behind."""
    mlp().save(tmp_path / "mlp.json")
    target = tmp_path / "page.html"
    assert main(["explore", str(tmp_path / "mlp.json"), "-o", str(target), *words]) == 1
    assert capsys.readouterr().err == f"torch-ir: error: {told}\n"
    assert not target.exists()


def test_what_reads_a_changing_buffer_is_not_computed_once() -> None:
    """It is another value in each run; what reads constant weights alone is in a box of its own."""

    class Steps(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("step", torch.zeros(()))
            self.weight = nn.Parameter(torch.ones(4))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.step += 1
            return x * (self.step * 2).cos() + (self.weight.abs() * 3).cos()

    ir = torch_ir.extract_ir(Steps().eval(), (torch.ones(4),), strict=False)
    group = hierarchy(ir, lambda node: None)
    (once,) = [item for item in group.items if not isinstance(item, OpNode) and item.kind == "once"]
    assert {node.op_type.split(".")[1] for node in once.nodes} == {"abs", "mul", "cos"}
    assert len(once.nodes) == 3
