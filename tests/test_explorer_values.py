"""What the explorer shows beside nodes: values of runtimes, the text form, generated Python, lines of the source."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

import torch_ir
from tests import browser
from tests.cpu_time import at_most
from tests.explored import decoder, sharded, with_call
from tests.explorer_page import panel
from tests.golden_packs import compared, dumped
from tests.graphs import everything, mlp
from tests.proof import captured
from tests.test_diff_events import Convolutions
from tests.test_watched_names import STACK, X, folded
from torch_ir.cli.dispatch import main
from torch_ir.explorer.code_lines import python_lines, source_lines
from torch_ir.golden.pack import read_pack
from torch_ir.ir import IR, OpNode, Origin
from torch_ir.ir.text.printer import print_node

needs_browser = pytest.mark.skipif(browser.find() is None, reason=browser.ABSENT)


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> tuple[IR, Path]:
    """A graph, and a folder with its golden pack and the dumps of two runtimes; `npu` is wrong from `relu` on."""
    folder = tmp_path_factory.mktemp("values")
    torch.manual_seed(0)
    model = Convolutions().eval()
    ir = captured(model, torch.ones(2, 4, 6, 6))
    ir.save(folder / "graph.json")
    torch_ir.write_golden(ir, model.state_dict(), (torch.randn(2, 4, 6, 6),), folder / "pack")
    pack = read_pack(folder / "pack")
    dumps = {value.name: pack.tensor(value).clone() for value in pack.values}
    save_file(dumps, folder / "cpu.safetensors")
    names = list(dumps)
    for name in names[names.index("relu") :]:
        dumps[name] = dumps[name] + 0.25
    dumps["flatten"][0, 0] = float("nan")
    del dumps["conv2d_1"]
    save_file(dumps, folder / "npu.safetensors")
    return ir, folder


def test_comparisons_keep_the_error_of_every_value(measured: tuple[IR, Path]) -> None:
    """Zero where the runtime agrees, infinity where it has a NaN, and nothing where it has no value."""
    _, folder = measured
    found = torch_ir.compare_golden(folder / "pack", folder / "npu.safetensors")
    assert found.errors["conv2d"] == 0
    assert found.errors["relu"] == pytest.approx(0.25)
    assert found.errors["flatten"] == float("inf")
    assert "conv2d_1" not in found.errors


@needs_browser
def test_the_first_wrong_node_is_one_click_away(shown: Any, measured: tuple[IR, Path]) -> None:
    """Boxes are coloured by error, and each runtime is a row with its first wrong node."""
    ir, folder = measured
    values = {name: torch_ir.compare_golden(folder / "pack", folder / f"{name}.safetensors") for name in ("npu", "cpu")}
    page = shown(ir, values=values)
    rows = panel(page)
    assert rows["npu"] == f"{len(values['npu'].differing)} of {len(ir.nodes) - 1} wrong first: relu"
    assert rows["cpu"] == f"0 of {len(ir.nodes)} wrong"
    page.get_by_role("button", name="First wrong").click()
    assert panel(page)["name"] == "relu"
    assert panel(page)["npu"] == "0.250 wrong"
    assert panel(page)["cpu"] == "0.00"
    assert page.get_by_role("button", name="Error of npu").get_attribute("aria-pressed") == "true"
    assert page.locator(".box.wrong").count() == len(values["npu"].differing)
    assert page.locator(".box.pale > text.title").all_text_contents() == ["conv2d"]
    assert "not finite" in page.locator(".share text").all_text_contents()
    page.get_by_role("button", name="Error of cpu").click()
    assert page.locator(".wrong, .pale, .share").count() == 0
    page.keyboard.press("w")
    assert page.locator(".message").inner_text() == "no node of cpu is wrong"


@needs_browser
@pytest.mark.parametrize("build", [mlp, everything, with_call, sharded, lambda: decoder(2)])
def test_the_text_form_is_that_of_the_graph(shown: Any, build: Any) -> None:
    """The page composes the same line for every node as the printer does."""
    ir = build()
    page = shown(ir)
    told = page.evaluate("app.sides[0].graphs.at(-1).nodes.map(textForm)")
    plain = [print_node(node) for node in ir.nodes]
    assert [(mine, its) for mine, its in zip(told, plain, strict=True) if mine != its and "`" not in its] == []
    page.evaluate("app.go(app.view, app.view.graph.nodes[0])")
    assert told[0] in page.locator(".panel pre").all_text_contents()


@needs_browser
def test_code_is_beside_the_node(shown: Any) -> None:
    """The line of generated Python, and that of the model's source."""
    ir = captured(Convolutions().eval(), torch.ones(2, 4, 6, 6))
    page = shown(ir, python=torch_ir.to_python(ir), sources=Path(__file__).parent)
    page.keyboard.press("/")
    page.keyboard.type("relu_1")
    page.keyboard.press("Enter")
    source, _, python = page.locator(".panel pre").all_text_contents()
    assert source == "x = torch.relu(x)"
    assert python.startswith("relu_1 = aten.relu.default(batch_norm_2)")


def named(source: str) -> IR:
    ir = mlp()
    node = ir.nodes[1]
    node.origin = Origin("", 0, "", source)
    return ir


def test_only_python_below_the_folder_is_read(tmp_path: Path) -> None:
    """A graph may name any file; one outside the folder, or of another kind, is not read."""
    inside, outside = tmp_path / "model", tmp_path / "secret.py"
    inside.mkdir()
    outside.write_text("key = 1\n")
    (inside / "net.py").write_text("first\n    y = relu(x)\n")
    (inside / "notes.txt").write_text("private\n")
    (inside / "link.py").symlink_to(outside)
    assert source_lines(named("net.py:2"), inside) == {"net.py:2": "y = relu(x)"}
    assert source_lines(named("/somewhere/else/net.py:2"), inside) == {"/somewhere/else/net.py:2": "y = relu(x)"}
    for source in ("../secret.py:1", f"{outside}:1", "link.py:1", "notes.txt:1", "net.py:9", "net.py:0", "net.py", ""):
        assert source_lines(named(source), inside) == {}, source


def test_sources_that_no_file_can_have_are_left_out(tmp_path: Path) -> None:
    """Names that are too long, numbers of thousands of digits, and paths of thousands of steps, which took seconds."""
    (tmp_path / "net.py").write_text("first\n")
    for source in ("a" * 300 + ".py:1", f"net.py:{'1' * 5000}", "/".join("a" * 2000) + "/net.py:1", "a\0.py:1"):
        with at_most(1):
            assert source_lines(named(source), tmp_path) == {}


def test_statements_are_found_by_the_names_that_they_assign() -> None:
    """Of equal names, the last counts: the main graph comes after its functions."""
    code = "def f(x):\n    a = one(x)\n\nclass Net:\n    def forward(self, x):\n        a, b = two(x)\n        return a"
    assert python_lines(code) == {"a": "a, b = two(x)", "b": "a, b = two(x)"}


def test_the_command_takes_dumps(measured: tuple[IR, Path], capsys: pytest.CaptureFixture[str]) -> None:
    """Each with the pack; a pack alone, or a folder that is not there, is a mistake."""
    _, folder = measured
    graph, pack, page = str(folder / "graph.json"), str(folder / "pack"), folder / "page.html"
    dumps = ["--dumps", str(folder / "npu.safetensors"), "--dumps", str(folder / "cpu.safetensors")]
    assert main(["explore", graph, "--pack", pack, *dumps, "--python", "--sources", str(folder), "-o", str(page)]) == 0
    assert page.is_file()
    capsys.readouterr()
    assert main(["explore", graph, "--pack", pack]) == 1
    assert "--pack and --dumps go together" in capsys.readouterr().err
    assert main(["explore", graph, "--sources", str(folder / "none")]) == 1
    assert "is not a folder" in capsys.readouterr().err


def test_without_code_a_page_has_none(tmp_path: Path) -> None:
    """Equal graphs have equal pages, whatever files are near them."""
    ir = mlp()
    ir.nodes.append(OpNode("nothing", "aten._assert_async.default", [ir.nodes[0].outputs[0]], [], args=["self"]))
    torch_ir.explore(ir, tmp_path / "one.html")
    torch_ir.explore(ir, tmp_path / "two.html", sources=tmp_path, python="")
    assert (tmp_path / "one.html").read_bytes() == (tmp_path / "two.html").read_bytes()


@needs_browser
def test_names_of_runtimes_fit_on_a_phone(chromium: Any, measured: tuple[IR, Path], tmp_path: Path) -> None:
    """Their buttons have one line each, and scroll."""
    ir, folder = measured
    found = {name: torch_ir.compare_golden(folder / "pack", folder / f"{name}.safetensors") for name in ("npu", "cpu")}
    torch_ir.explore(ir, tmp_path / "page.html", values=found)
    page = browser.Visit(chromium, tmp_path / "page.html", viewport={"width": 390, "height": 844}).page
    page.wait_for_selector("html[data-ready]")
    button = page.get_by_role("button", name="Error of npu")
    assert button.evaluate("button => button.scrollHeight <= button.clientHeight")
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    page.close()


def folded_values(folder: Path) -> tuple[IR, torch_ir.Comparison]:
    """A graph with a function of three calls, and a runtime whose second call is wrong."""
    ir = folded()
    torch_ir.write_golden(ir, STACK.state_dict(), (X,), folder / "pack")
    dumps = dumped(ir, STACK.state_dict(), X)
    wrong = next(name for name in dumps if name.endswith("@1") and "/relu" in name)
    dumps[wrong] = dumps[wrong] + 0.25
    return ir, compared(folder / "pack", dumps)


@needs_browser
def test_errors_inside_functions_are_at_their_nodes(shown: Any, tmp_path: Path) -> None:
    """The largest of all calls; the first wrong node is shown in the body of the function."""
    ir, found = folded_values(tmp_path)
    page = shown(ir, values={"npu": found})
    inside = sum(len(body.nodes) for body in ir.functions.values())
    assert panel(page)["npu"] == f"1 of {len(ir.nodes) + inside} wrong first: relu"
    page.get_by_role("button", name="First wrong").click()
    assert panel(page)["npu"] == "0.250 wrong"
