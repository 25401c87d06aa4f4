"""A graph whose names are hostile text, in every written language: its parser sees only text."""

import ast
import csv
import json
import xml.etree.ElementTree
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from tests.graphs import mlp, tensor
from tests.test_escaping import PAYLOADS, _seen
from torch_ir import IR, OpNode, diff, to_mlir, to_python
from torch_ir.analysis import plan_memory
from torch_ir.analysis.graph_diff.diff_text import as_markdown
from torch_ir.draw import memory_picture
from torch_ir.errors import TorchIRError
from torch_ir.ir import Branch, Origin, Slot
from torch_ir.ir.graph.name_grammar import is_line
from torch_ir.simulators import to_scale_sim, to_timeloop, to_zigzag

TEXTS = [text for text in PAYLOADS if is_line(text, 1000) and text.encode("utf-8", "ignore").decode() == text]
_HARMLESS = {
    "table",
    "thead",
    "tbody",
    "tr",
    "th",
    "td",
    "code",
    "p",
    "strong",
    "ul",
    "li",
    "details",
    "summary",
    "pre",
}


def hostile(text: str) -> IR:
    """A graph with the text as the name of the model, of a module, a class, a line of code and a weight."""
    ir = mlp()
    ir.model_name = text
    for node in ir.nodes:
        node.origin = Origin(text, 0, text, text)
    ir.modules = {text: text}
    held = ir.params[0].param
    assert held is not None
    ir.params[0].param = type(held)((text,), held.kind)
    return ir


@pytest.fixture(scope="module")
def graphs() -> list[IR]:
    found = [hostile(text) for text in TEXTS]
    assert len(found) > 50
    for ir in found:
        ir.check()
    return found


def test_markdown(graphs: list[IR]) -> None:
    """`diff --markdown`, by a parser like those of code hosts."""
    markdown = pytest.importorskip("markdown_it", reason="markdown-it-py is not installed").MarkdownIt(
        "gfm-like", {"linkify": False}
    )
    for ir in graphs:
        ir = ir.clone()
        ir.nodes[0].attrs["text"] = ir.model_name
        shown = as_markdown(diff(ir, mlp()), {})
        tags = set(_seen(markdown.render(shown)).tags)
        assert tags <= _HARMLESS, (ir.model_name, tags - _HARMLESS)


def test_svg(graphs: list[IR]) -> None:
    """The picture of a memory plan is XML of the same elements, whatever the names."""
    kinds = set()
    for ir in graphs:
        found = xml.etree.ElementTree.fromstring(memory_picture(plan_memory(ir), ir.model_name))
        kinds.add(tuple(each.tag for each in found.iter()))
        assert not [each for each in found.iter() if "href" in each.attrib or "onload" in each.attrib]
    assert len(kinds) == 1


@pytest.mark.parametrize("step", [6, pytest.param(1, marks=pytest.mark.slow)])
def test_html(graphs: list[IR], step: int) -> None:
    """What a notebook shows; every picture is laid out in a separate process."""
    plain = set(_seen(mlp()._repr_html_()).tags)
    for ir in graphs[::step]:
        assert set(_seen(ir._repr_html_()).tags) <= plain, ir.model_name


@pytest.mark.parametrize("write", [to_mlir, to_python])
def test_programs(write: Callable[[IR], str], graphs: list[IR]) -> None:
    """MLIR and Python have as many lines, and Python the same statements, as for a graph of harmless names."""
    lines, kinds = set(), set()
    for ir in graphs:
        try:
            text = write(ir)
        except TorchIRError:  # no attribute can be named after the weight
            continue
        lines.add(text.count("\n"))
        if write is to_python:
            kinds.add(tuple(type(node).__name__ for node in ast.parse(text).body))
        assert all(character.isprintable() or character == "\n" for character in text), ir.model_name
    assert len(lines) == 1
    assert len(kinds) == (write is to_python)


def _with_texts(text: str) -> IR:
    """A graph with the text as an attribute, in the structure of its inputs and outputs, and as the name of a class."""
    x = tensor("x", 2, 3)
    node = OpNode("y", "aten.gelu.default", [x], [tensor("y", 2, 3)], {"approximate": text}, args=["self"])
    given = Branch("tuple", (Branch("tuple", (Branch("dict", (Slot(0), text), (text, "k 0")),)), Branch("dict", ())))
    inner = Branch("tuple", (Slot(1), text), (text, "k 1"), text)
    returned = Branch("object", (Slot(0), inner), (text, "k 2"), text)
    return IR([node], [x], [node.output, node.output], input_tree=given, output_tree=returned).check()


def test_texts_in_programs() -> None:
    """Each text is a constant of the Python source, whose syntax is that of any other; MLIR has as many lines."""
    lines, kinds = set(), set()
    for text in PAYLOADS:
        try:
            ir = _with_texts(text)
        except TorchIRError:  # a name of a class must be printable
            continue
        tree = list(ast.walk(ast.parse(to_python(ir))))
        kinds.add(tuple(type(node).__name__ for node in tree))
        assert [node.value for node in tree if isinstance(node, ast.Constant)].count(text) >= 4
        lines.add(to_mlir(ir).count("\n"))
    assert len(lines) == len(kinds) == 1


def test_files_of_simulators(graphs: list[IR], tmp_path: Path) -> None:
    """Rows of CSV, documents of YAML and names of files are those of a graph of harmless names."""
    for ir in graphs:
        for node in ir.nodes:
            node.name = f"={node.name},{node.name}"
        to_scale_sim(ir, tmp_path / "topology.csv")
        rows = list(csv.reader((tmp_path / "topology.csv").read_text().splitlines()))
        assert [len(row) for row in rows] == [9, 9, 9]
        assert not [row for row in rows if row[0].startswith(("=", "+", "-", "@"))]
        to_zigzag(ir, tmp_path / "workload.yaml")
        assert [layer["id"] for layer in yaml.safe_load((tmp_path / "workload.yaml").read_text())] == [0, 1]
        to_timeloop(ir, tmp_path / "problems")
    assert len(list((tmp_path / "problems").iterdir())) == 2
    for path in (tmp_path / "problems").iterdir():
        assert json.loads(path.read_text().removeprefix("problem: "))["version"] == 0.4
