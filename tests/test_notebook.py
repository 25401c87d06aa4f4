"""Notebooks: a graph is displayed with a summary and a drawing, whatever its name and the missing packages."""

import html.parser
from pathlib import Path
from typing import Any

import pytest

from tests import browser
from tests.test_draw import HOSTILE, chain, mlp
from tests.test_draw_views import model
from torch_ir.draw import notebook
from torch_ir.errors import MissingExtraError
from torch_ir.ir import IR, TensorMeta


class Tags(html.parser.HTMLParser):
    """The names of all elements, their attributes, and the text between them."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []
        self.attributes: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.append(tag)
        self.attributes += [name for name, _ in attrs]

    def handle_data(self, data: str) -> None:
        self.text += data


def read(page: str) -> Tags:
    tags = Tags()
    tags.feed(page)
    return tags


def test_a_graph_shows_a_summary_and_a_picture() -> None:
    """Name, nodes, parameters, inputs and outputs with shapes, operators, and the picture as SVG."""
    pytest.importorskip("pygraphviz")
    shown = read(mlp()._repr_html_())
    for words in ("SimpleMLP", "x: float32 1x4", "linear_1: float32 1x2", "linear 2 · relu 1", "58"):
        assert words in shown.text, words
    assert shown.names.count("svg") == 1


@pytest.mark.skipif(browser.find() is None, reason=browser.ABSENT)
@pytest.mark.parametrize("display", ["block", "flex", "table"])
def test_the_picture_stays_inside_its_cell(chromium: Any, tmp_path: Path, display: str) -> None:
    """Notebooks lay cells out in different ways; a wide graph is scaled to the width of the cell."""
    cell = f'<div id="cell" style="display:{display};width:300px">{model(3)._repr_html_()}</div>'
    (tmp_path / "cell.html").write_text(f"<!doctype html><meta charset=utf-8>{cell}", encoding="utf-8")
    visit = browser.Visit(chromium, tmp_path / "cell.html")
    cell_box, svg = (visit.page.locator(name).bounding_box() for name in ("#cell", "svg"))
    visit.page.close()
    assert cell_box["width"] <= 301
    assert svg["x"] + svg["width"] <= cell_box["x"] + cell_box["width"] + 1
    assert svg["width"] > 150


def test_a_large_graph_is_shown_legibly() -> None:
    page = model(200)._repr_html_()
    assert "603 nodes in 8 boxes: equal layers are drawn once" in page
    assert len(page) < 40_000


def test_without_graphviz_the_picture_is_text(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_: object, **__: object) -> bytes:
        raise MissingExtraError("drawing .svg files", "pygraphviz", "draw")

    monkeypatch.setattr(notebook, "drawn", missing)
    shown = read(mlp()._repr_html_())
    assert "svg" not in shown.names
    assert 'op_relu["relu<br/>1x8"]' in shown.text


def test_hostile_names_are_inert() -> None:
    """They show as themselves: no element and no attribute that runs anything."""
    ir = chain([*HOSTILE, '"><img src=x onerror=alert(1)>', "</svg><script>alert(1)</script>"])
    ir.model_name = "<script>alert(1)</script>"
    shown = read(ir._repr_html_())
    assert "<script>alert(1)</script>" in shown.text
    assert not {"script", "img", "iframe", "object", "embed", "foreignobject"} & set(shown.names)
    assert not [name for name in shown.attributes if name.startswith("on") or name in ("href", "xlink:href", "src")]


def test_it_never_raises() -> None:
    """A graph that is being put together may be in any state."""
    broken = mlp()
    broken.graph_inputs = None  # type: ignore[assignment]
    broken.__class__ = type("Broken", (IR,), {"__slots__": (), "__repr__": lambda self: "a <broken> graph"})
    assert broken._repr_html_() == "<pre>a &lt;broken&gt; graph</pre>"
    assert "<table>" in IR([], [], [])._repr_html_()
    assert "… 4 more" in IR([], [TensorMeta(f"x{at}", (2,), "float32") for at in range(10)], [])._repr_html_()


def test_a_real_notebook(tmp_path: Path) -> None:
    """A cell that ends in a graph has its picture below it, and torch was not imported for that."""
    nbformat, nbclient = (
        pytest.importorskip("nbformat", reason="nbformat is not installed"),
        pytest.importorskip("nbclient", reason="nbclient is not installed"),
    )
    mlp().save(tmp_path / "mlp.json")
    cells = [
        "from torch_ir.ir import IR\nIR.load('mlp.json')",
        "import sys\nprint('torch' in sys.modules)",
    ]
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in cells])
    nbclient.NotebookClient(book, timeout=120, resources={"metadata": {"path": str(tmp_path)}}).execute()
    (shown,), (printed,) = (cell.outputs for cell in book.cells)
    assert "<svg" in shown.data["text/html"]
    assert "SimpleMLP" in shown.data["text/html"]
    assert shown.data["text/plain"].startswith("IR(model_name='SimpleMLP', nodes=3")
    assert printed.text == "False\n"
