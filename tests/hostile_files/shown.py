"""Checks of printed text: nothing that a terminal, a browser, Graphviz, Mermaid or Python would interpret."""

import ast
import re

_TAG = re.compile(r"<\s*/?\s*(script|img|iframe|svg|style|a)\b|<[^>]*\bhref\b", re.IGNORECASE)
_MERMAID = re.compile(
    r"""[ ]+ (?: \w+ (?: \[/ | \[\\ | \[ | \{ | \(\( ) "[^"]*" (?: /\] | \] | \} | \)\) )  # a box
        | \w+ [ ] (?: --> | -\.-> ) (?: \|"[^"]*"\| )? [ ] \w+                         # an arrow
        | subgraph [ ] \w+ \["[^"]*"\] | end | \w+                                     # a frame, its end, what is in it
        | style [ ] \w+ [ ] [\w:,#]+
        | title [ ] "[^"]*" | "[^"]*" [ ] : [ ] \d+                                    # a slice of a pie
    )""",
    re.VERBOSE | re.ASCII,
)
_QUOTED = re.compile(r'"(?:[^"\\]|\\.)*"')
_LABEL = re.compile(r'"([^"]*)"')
_HARMLESS_NAMES = frozenset(
    ["torch", "collections", "__future__", "typing", "pathlib", "safetensors", "base64", "operator", "math"]
)


class LeakError(Exception):
    """A printer shows text of a file as it is."""


def check_text(text: str) -> None:
    """All of it can be printed: no controls, no line ends but newlines, nothing that turns text around."""
    for character in text:
        if not character.isprintable() and character != "\n":
            at = text.index(character)
            raise LeakError(f"{character!r} in {text[max(0, at - 40) : at + 20]!r}")


def check_drawn(text: str) -> None:
    """Mermaid or DOT, in which labels are labels."""
    check_text(text)
    if text.startswith("digraph"):
        _check_dot(text)
        return
    for line in text.splitlines()[1:]:
        if not _MERMAID.fullmatch(line):
            raise LeakError(f"a line of Mermaid is {line!r}")
        for label in _LABEL.findall(line):
            if _TAG.search(label) or "%%" in label or "`" in label:
                raise LeakError(f"a label of Mermaid is {label!r}")


def _check_dot(text: str) -> None:
    """Parsed by Graphviz, it contains only the expected nodes, and no links."""
    import pygraphviz

    if found := _TAG.search(_QUOTED.sub("", text)):
        raise LeakError(f"DOT has a tag {found[0]!r}")
    graph = pygraphviz.AGraph(string=text)
    for name in graph.nodes():
        if not re.fullmatch(r"(input|op|w|output|update|note|frame|column|in|out)_?\w*", name, re.ASCII):
            raise LeakError(f"DOT has a node {name!r}")
        for key in ("URL", "href", "tooltip", "image"):
            if graph.get_node(name).attr[key]:
                raise LeakError(f"node {name!r} of DOT has a {key}")


def check_program(text: str) -> None:
    """Check that Python source imports and calls nothing unexpected."""
    check_text(text)
    for found in ast.walk(ast.parse(text)):
        if isinstance(found, ast.Import):
            names = [alias.name for alias in found.names]
        elif isinstance(found, ast.ImportFrom):
            names = [found.module or ""]
        else:
            continue
        if unknown := {name.partition(".")[0] for name in names} - _HARMLESS_NAMES:
            raise LeakError(f"the program imports {unknown}")
