"""Graphviz DOT text of a scene: rounded boxes, coloured by what they do, weights small and grey beside their reader."""

from __future__ import annotations

import html
from collections.abc import Iterable, Iterator, Sequence

from torch_ir.draw.columns import boxes_in, in_columns
from torch_ir.draw.scene import Box, Edge, Frame, Scene

_FONT = "DejaVu Sans"
_HEADER = f"""\
  graph [rankdir=TB, nodesep=0.3, ranksep=0.35, pad=0.3, bgcolor="white"]
  node [shape=box, style="rounded,filled", penwidth=1.2, margin="0.14,0.05", fontname="{_FONT}", fontsize=12]
  edge [color="#8a8a8a", penwidth=1, arrowsize=0.6, fontname="{_FONT}", fontsize=8, fontcolor="#8a8a8a"]"""
# kind of box or family of operators -> fill and border
_COLOURS: dict[str, tuple[str, str]] = {
    "input": ("#dff3e1", "#3f9150"),
    "output": ("#dcebfb", "#3574b8"),
    "weight": ("#f6f6f6", "#cccccc"),
    "note": ("#ffffff", "#9a9a9a"),
    "placeholder": ("#f9c9c5", "#c62828"),
    "decision": ("#fff6e5", "#b26a00"),
    "connector": ("#ffffff", "#8a8a8a"),
    "matmul": ("#ffe3bd", "#cf8519"),
    "normalisation": ("#eae0f8", "#8560c2"),
    "activation": ("#fdf3b8", "#b8990f"),
    "elementwise": ("#d9f1ef", "#35958d"),
    "movement": ("#e7edf3", "#74899e"),
    "reduction": ("#fbdeeb", "#bf5288"),
    "attention": ("#ffd8cc", "#d2623f"),
    "other": ("#ffffff", "#7d7d7d"),
}
_EXTRA = {
    "note": ', style="rounded,dashed"',
    "placeholder": ', penwidth=2.5, fontcolor="#8e1414"',
    "connector": ', shape=circle, style=filled, margin="0.01", fontsize=9',
    "decision": ', shape=diamond, style=filled, margin="0.02,0.02"',
}
_FRAME = 'peripheries=1; label=""; style="rounded,dashed"; color="#8a8a8a"; bgcolor="#fafafa";'


def to_dot(scene: Scene) -> str:
    """A scene as a DOT digraph; weights with the same readers share a box, and one reader has it at its side."""
    scene, columns = in_columns(scene) if scene.wraps else (scene, [])
    lines = [_box(box) for box in scene.boxes if box.kind != "weight"]
    lines += [_edge(edge) for edge in scene.edges if edge.style == "solid"]
    beside: dict[str, str] = {}
    for readers, weights in _weights_by_readers(scene).items():
        lines += _weight_box(weights, readers)
        if len(readers) == 1:
            beside[readers[0]] = weights[0].id
    lines += _columns(scene, columns, beside) if columns else _frames(scene.frames, beside)
    lines += [_together(reader, weights) for reader, weights in beside.items()]
    lines += _dashes_around_the_note(scene, columns)
    if scene.legend:  # at the end, lest frames inherit it
        lines += [f"label={_legend(scene.legend)}", "labelloc=t", "labeljust=l"]
    body = "\n".join(f"  {line}" for line in lines)
    return f"digraph {_quoted(scene.title)} {{\n{_HEADER}\n{body}\n}}\n"


def _box(box: Box) -> str:
    fill, border = _COLOURS[box.family if box.kind == "op" else box.kind]
    first, *rest = map(_text, box.lines)
    rows = [f"<tr><td>{first}</td></tr>"]
    rows += [f'<tr><td><font point-size="9" color="#6f6f6f">{line}</font></td></tr>' for line in rest]
    return f'{box.id} [label={_table(rows)}, fillcolor="{fill}", color="{border}"{_EXTRA.get(box.kind, "")}]'


def _edge(edge: Edge) -> str:
    label = f"label=<&#160;{_text(edge.label)}>, " if edge.label else ""
    return f"{edge.source} -> {edge.target} [{label}weight=4]"


def _weights_by_readers(scene: Scene) -> dict[tuple[str, ...], list[Box]]:
    readers: dict[str, dict[str, None]] = {}
    for edge in scene.edges:
        if edge.style == "dotted":
            readers.setdefault(edge.source, {})[edge.target] = None
    groups: dict[tuple[str, ...], list[Box]] = {}
    for box in scene.boxes:
        if box.kind == "weight":
            groups.setdefault(tuple(readers[box.id]), []).append(box)
    return groups


def _weight_box(weights: list[Box], readers: tuple[str, ...]) -> Iterator[str]:
    """One row per weight: its name, its shape."""
    box_id = weights[0].id
    fill, border = _COLOURS["weight"]
    cell = '<td align="{}"><font point-size="8" color="#{}">{}</font></td>'.format
    rows = [
        f"<tr>{cell('left', '6a6a6a', _text(name))}{cell('right', '9a9a9a', '&#160;&#160;' + _text(shape))}</tr>"
        for name, shape in (box.lines for box in weights)
    ]
    yield (
        f'{box_id} [label={_table(rows)}, fillcolor="{fill}", color="{border}", penwidth=0.8, height=0.3, '
        'margin="0.06,0.04"]'
    )
    for reader in readers:
        yield f'{box_id} -> {reader} [style=dotted, arrowsize=0.5, color="#a8a8a8", weight=0]'


def _together(reader: str, weights: str) -> str:
    """An invisible cluster keeps a node and its weights side by side."""
    return f'subgraph cluster_{weights} {{ peripheries=0; margin=0; label=""; {{ rank=same; {reader}; {weights} }} }}'


def _frames(frames: Iterable[Frame], beside: dict[str, str]) -> Iterator[str]:
    """Clusters with titles; weights beside their boxes are taken into them.

    A title is a box of its own above the first one: arrows go around boxes, but through the labels of clusters.
    """
    for frame in frames:
        title = f"{frame.id}_title"
        yield f"subgraph cluster_{frame.id} {{ {_FRAME}"
        yield f'{title} [label=<<b>{_text(frame.title)}</b>>, shape=plain, style="", fontcolor="#444444"]'
        below = [*frame.boxes[:1], *(f"{inner.id}_title" for inner in frame.frames[:1])]
        yield from (f"{title} -> {box} [style=invis, weight=0]" for box in below)
        yield " ".join(f"{box};" for box in frame.boxes)
        yield from (_together(box, beside.pop(box)) for box in frame.boxes if box in beside)
        yield from _frames(frame.frames, beside)
        yield "}"


def _columns(scene: Scene, columns: Sequence[Sequence[str]], beside: dict[str, str]) -> Iterator[str]:
    """Each column as an invisible cluster that begins at the top, one to the right of the other."""
    framed = {box: frame for frame in scene.frames for box in boxes_in([frame])}
    heads = [f"column_{number}" for number in range(len(columns))]
    fed = {edge.target for edge in scene.edges if edge.style == "solid"}
    for head, boxes in zip(heads, columns, strict=True):
        free = [box for box in boxes if box not in framed]
        yield f'subgraph cluster_{head} {{ peripheries=0; label=""; {head} [style=invis, shape=point];'
        yield " ".join(f"{box};" for box in free)
        yield from (_together(box, beside.pop(box)) for box in free if box in beside)
        yield from _frames(dict.fromkeys(framed[box] for box in boxes if box in framed), beside)
        yield "}"
        yield from (f"{head} -> {box} [style=invis]" for box in boxes if box not in fed)
    yield f"{' -> '.join(heads)} [style=invis, constraint=false]"


def _legend(text: str) -> str:
    fill, border = _COLOURS["placeholder"]
    words = f'<font face="{_FONT}" point-size="12" color="{border}">{_text(text)}</font>'
    look = f'border="1" cellborder="0" cellpadding="5" color="{border}" bgcolor="{fill}"'
    return f"<<table {look}><tr><td>{words}</td></tr></table>>"


def _dashes_around_the_note(scene: Scene, columns: Sequence[Sequence[str]]) -> Iterator[str]:
    """A cut graph hangs together: open ends lead into the note, the note to the outputs that nothing drawn makes.

    Where there are columns, the note stands in the last one, and only what ends there leads into it.
    """
    note = next((box.id for box in scene.boxes if box.kind == "note"), None)
    if note is None:
        return
    reached = {edge.target for edge in scene.edges}
    ends = [source for source in scene.open_ends if not columns or source in columns[-1]]
    yield from (f"{source} -> {note} [style=dashed]" for source in ends)
    for box in scene.boxes:
        if box.kind == "output" and box.id not in reached:
            yield f"{note} -> {box.id} [style=dashed]"


def _table(rows: Iterable[str]) -> str:
    return f'<<table border="0" cellborder="0" cellspacing="0" cellpadding="1">{"".join(rows)}</table>>'


def _text(text: str) -> str:
    """Text for an HTML-like label, where an empty cell is an error."""
    return html.escape(_printable(text), quote=False) or "&#160;"


def _quoted(text: str) -> str:
    return '"' + _printable(text).replace("\\", "\\\\").replace('"', '\\"') + '"'


def _printable(text: str) -> str:
    return "".join(character if character.isprintable() else " " for character in text)
