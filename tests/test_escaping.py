"""Hostile text in every output language: a parser of that language sees only text."""

import ast
import csv
import io
import random
import re
import shlex
import tokenize
import unicodedata
from html.parser import HTMLParser

import pytest
import yaml

from torch_ir import escaping

PAYLOADS = [
    "plain", "", " ", "a|b", "a\nb", "a\r\n# b", "<script>alert(1)</script>", "<img src=x onerror=alert(1)>",
    "</code><b>x", "</td></tr>", "&lt;b&gt;", "&#60;b&#62;", "[a](javascript:alert(1))", "![a](http://b/c.png)",
    "<http://a.b>", "www.a.b", "https://a.b/c", "*a* **b** _c_ __d__ ~~e~~", "`a`", "``a", "~~~~",
    "~~~~~~~~\nescaped", "# title", "- item", "1. item", "> quote", "@someone", "#123", "org/repo#1", "GH-1", "\\",
    "\\\\", "\\|", "\\`", '"', '\\"', '";}', '"]; a -> b; x["', '" URL="javascript:alert(1)', "'", "'; rm -rf ~; '",
    "$(id)", "`id`", "${HOME}", "a b", "!!", "%%{init: {}}%%", "direction TB", "end", "click a href", "subgraph x",
    "#quot;", "a;b", "\x00", "\x1b[2J", "\u202eabc", "\u2028", "\x85", "é漢🙂", "\ud800", '"""', "'''",
    "\\u000aimport os", "#\nimport os", 'loc("x")', "\\22", "{{ a }}", "<!-- a -->", "<![CDATA[a]]>",
]  # fmt: skip


def _texts(count: int = 400) -> list[str]:
    """The payloads, and pieces of several put together."""
    draw = random.Random(7)
    pieces = [piece for payload in PAYLOADS for piece in (payload, payload[: len(payload) // 2])]
    return [*PAYLOADS, *("".join(draw.choices(pieces, k=draw.randint(2, 4))) for _ in range(count))]


class _Seen(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[str] = []
        self.data = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)

    def handle_endtag(self, tag: str) -> None:
        self.tags.append(tag)

    def handle_comment(self, data: str) -> None:
        self.tags.append("!--")

    handle_decl = handle_pi = unknown_decl = handle_comment

    def handle_data(self, data: str) -> None:
        self.data += data


def _seen(source: str) -> _Seen:
    seen = _Seen()
    seen.feed(source)
    seen.close()
    return seen


def _is_in_one_line(text: str) -> bool:
    return len(text.splitlines()) <= 1 and not any(unicodedata.category(c) in ("Cc", "Cf", "Zl", "Zp") for c in text)


def test_html() -> None:
    for text in _texts():
        in_element, in_attribute = _seen(f"<p>{escaping.in_html(text)}</p>"), escaping.in_html(text)
        assert in_element.tags == ["p", "p"], text
        assert in_element.data == "\n".join(map(escaping.one_line, text.split("\n"))), text
        assert not set(in_attribute) & set("\"'"), text


def test_markdown() -> None:
    """Checked with a parser like those of code hosts; a cell stays one cell, whatever its content."""
    markdown = pytest.importorskip("markdown_it", reason="markdown-it-py is not installed").MarkdownIt(
        "gfm-like", {"linkify": False}
    )
    for text in _texts():
        shown = escaping.in_markdown(text)
        seen = _seen(markdown.render(f"| a | b |\n|---|---|\n| {shown} | next |\n"))
        assert set(seen.tags) <= {"table", "thead", "tbody", "tr", "th", "td", "code"}, (text, seen.tags)
        assert seen.tags.count("td") == 4, text
        assert escaping.one_line(text).strip() in seen.data, text
        if any(mark in text for mark in ("@s", "#1", "://", "www.")):
            assert seen.tags.count("code") == 2, text  # without mentions and links


def test_a_markdown_block() -> None:
    markdown = pytest.importorskip("markdown_it", reason="markdown-it-py is not installed").MarkdownIt("commonmark")
    for text in _texts():
        tokens = markdown.parse(escaping.as_markdown_block(f"- {text}", "diff"))
        assert [token.type for token in tokens] == ["fence"], text


def test_dot() -> None:
    """By Graphviz itself: one node, with this label and no link."""
    pygraphviz = pytest.importorskip("pygraphviz", reason="torch-ir[draw] is not installed")
    for text in _texts(60):
        string, label = escaping.in_dot_string(text), escaping.in_dot_label(text)
        source = f"digraph g {{ a [label={string}]; b [label=<<b>{label}</b>>] }}"
        graph = pygraphviz.AGraph(string=source.encode("utf-8", "replace").decode())
        assert graph.nodes() == ["a", "b"], text
        assert not graph.edges(), text
        assert not any(graph.get_node(name).attr["URL"] for name in "ab"), text
        assert _seen(f"<b>{label}</b>").tags == ["b", "b"], text


def test_mermaid() -> None:
    """Nothing that ends a quoted label, begins a tag or a directive, or is an order."""
    for text in _texts():
        shown = escaping.in_mermaid(text)
        assert not set(shown) & set('"<>&%`{}\\$'), text
        assert "direction " not in shown, text
        assert _is_in_one_line(shown), text


def test_mlir() -> None:
    for text in _texts():
        shown = escaping.in_mlir(text)
        assert (shown[0], shown[-1]) == ('"', '"')
        assert not set(shown[1:-1]) & {'"'}, text
        assert all(" " <= character <= "~" for character in shown), text
        assert _of_mlir(shown[1:-1]) == text.encode("utf-8", "replace"), text


def _of_mlir(text: str) -> bytes:
    """The bytes of a string, as MLIR reads it."""
    parts = text.split("\\")
    return parts[0].encode() + b"".join(bytes([int(part[:2], 16)]) + part[2:].encode() for part in parts[1:])


def test_python() -> None:
    """A comment, and the next line is the next line."""
    for text in _texts():
        source = f"{escaping.in_python(text)}\nx = 1\n"
        assert ast.dump(ast.parse(source)) == ast.dump(ast.parse("x = 1")), text
        kinds = [token.type for token in tokenize.generate_tokens(io.StringIO(source).readline)]
        assert kinds[:2] == [tokenize.COMMENT, tokenize.NL], text


def test_yaml() -> None:
    """Read back by a YAML parser as the same text."""
    for text in _texts():
        shown = escaping.in_yaml({"name": text, "sizes": [1, 2.5]})
        assert shown.isprintable(), text
        assert yaml.safe_load(f"- {shown}\n") == [{"name": text, "sizes": [1, 2.5]}], text


def test_plain_names() -> None:
    """One cell of CSV that is not a formula, and one file name below any folder."""
    for text in _texts():
        shown = escaping.as_plain_name(text)
        assert next(csv.reader([shown])) == [shown], text
        assert re.fullmatch(r"(?![.-])[\w.-]+", shown, re.ASCII), text


def test_shell() -> None:
    for text in _texts():
        assert shlex.split(f"torch-ir check {escaping.in_shell(text)}")[2:] == [escaping.one_line(text)], text
