"""Graphviz DOT text of a scene: rounded boxes, coloured by family, with weights small and grey beside their reader."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from torch_ir.draw.colours import CENTRE, COLOURS, DEAD, FONT, MARKS, PLAIN
from torch_ir.draw.columns import boxes_in, in_columns
from torch_ir.draw.elements import Box, Edge, Frame, Scene
from torch_ir.draw.heat import text_on
from torch_ir.draw.legend import label_of
from torch_ir.escaping import in_dot_label, in_dot_string

_HEADER = f"""\
  graph [rankdir=TB, nodesep=0.3, ranksep=0.35, pad=0.3, bgcolor="white"]
  node [shape=box, style="rounded,filled", penwidth=1.2, margin="0.14,0.05", fontname="{FONT}", fontsize=12]
  edge [color="#8a8a8a", penwidth=1, arrowsize=0.6, fontname="{FONT}", fontsize=8, fontcolor="#8a8a8a"]"""
_EXTRA = {
    "note": ', style="rounded,dashed"',
    "stub": ', shape=plain, style="", fontsize=9, fontcolor="#7a7a7a"',
    "partly": f', penwidth=2.5, color="{COLOURS["placeholder"][1]}"',
    "placeholder": ', penwidth=2.5, fontcolor="#8e1414"',
    "connector": ', shape=circle, style=filled, margin="0.01", fontsize=9',
    "decision": ', shape=diamond, style=filled, margin="0.02,0.02"',
}
_FRAME = 'peripheries=1; label=""; style="rounded,dashed"; color="#8a8a8a"; bgcolor="#fafafa";'
_SIDE = 'peripheries=1; label=""; style="rounded"; color="#d0d0d0"; bgcolor="#ffffff"; margin=14;'


def to_dot(scene: Scene, legend: bool | None = None) -> str:
    """Return a scene as a DOT digraph; weights with the same readers share a box, beside the reader if it is one.

    `legend` says whether to explain the colours of families; by default in all but small drawings.
    """
    scene, columns = in_columns(scene) if scene.wraps else (scene, [])
    is_compared = any(box.mark for box in scene.boxes)
    lines = [_box(box, is_compared) for box in scene.boxes if box.kind != "weight"]
    lines += [_edge(edge) for edge in scene.edges if edge.style != "dotted"]
    beside: dict[str, str] = {}
    for readers, weights in _weights_by_readers(scene).items():
        lines += _weight_box(weights, readers)
        if len(readers) == 1:
            beside[readers[0]] = weights[0].id
    lines += _columns(scene, columns, beside) if columns else _frames(scene.frames, beside)
    lines += _sides(scene)
    lines += [_together(reader, weights) for reader, weights in beside.items()]
    lines += _note_edges(scene, columns)
    if label := label_of(scene, max(len(columns), len(scene.frames)), legend):  # last, or frames inherit it
        lines += [f"label={label}", "labelloc=t", "labeljust=l"]
    body = "\n".join(f"  {line}" for line in lines)
    return f"digraph {in_dot_string(scene.title)} {{\n{_HEADER}\n{body}\n}}\n"


def _box(box: Box, is_compared: bool) -> str:
    fill, border = _colours(box, is_compared)
    if box.is_dead and not box.mark:
        fill = "#ffffff"
    letters = text_on(box.fill) if box.fill else ""
    small = letters or "#6f6f6f"
    first, *rest = map(in_dot_label, box.lines)
    rows = [f"<tr><td>{first}</td></tr>"]
    rows += [f'<tr><td><font point-size="9" color="{small}">{line}</font></td></tr>' for line in rest]
    look = f'fillcolor="{fill}", color="{border}"{_EXTRA.get(box.kind, "")}'
    if letters:
        look += f', fontcolor="{letters}"'
    if box.is_dead and not box.mark:
        look += f', style="rounded,dashed", color="{DEAD}", fontcolor="{DEAD}"'
    if box.is_centre:
        look += f', penwidth=3.5, color="{CENTRE}"'
    name = f", id={in_dot_string(box.names[0])}" if box.names else ""
    return f"{box.id} [label={_table(rows)}, {look}{name}]"


def _colours(box: Box, is_compared: bool) -> tuple[str, str]:
    """Return fill and border: by difference, heat, or family."""
    if box.mark:
        return MARKS[box.mark]
    if box.kind in ("op", "partly"):
        fill, border = PLAIN if is_compared else COLOURS[box.family]
        return (box.fill, "#7d7d7d") if box.fill else (fill, border)
    if is_compared and box.kind in ("input", "output"):
        return PLAIN
    fill, border = COLOURS[box.kind]
    return box.fill or fill, border


def _edge(edge: Edge) -> str:
    if edge.style == "dashed":
        return f"{edge.source} -> {edge.target} [style=dashed, arrowsize=0.5, weight=1]"
    label = f"label=<&#160;{in_dot_label(edge.label)}>, " if edge.label else ""
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
    """Yield one row per weight: name and shape."""
    box_id = weights[0].id
    fill, border = COLOURS["weight"]
    cell = '<td align="{}"><font point-size="8" color="#{}">{}</font></td>'.format
    rows = [
        f"<tr>{cell('left', '6a6a6a', name)}{cell('right', '9a9a9a', '&#160;&#160;' + shape)}</tr>"
        for name, shape in (map(in_dot_label, box.lines) for box in weights)
    ]
    yield (
        f'{box_id} [label={_table(rows)}, fillcolor="{fill}", color="{border}", penwidth=0.8, height=0.3, '
        'margin="0.06,0.04"]'
    )
    for reader in readers:
        yield f'{box_id} -> {reader} [style=dotted, arrowsize=0.5, color="#a8a8a8", weight=0]'


def _together(reader: str, weights: str) -> str:
    """Return an invisible cluster that keeps a node and its weights side by side."""
    return f'subgraph cluster_{weights} {{ peripheries=0; margin=0; label=""; {{ rank=same; {reader}; {weights} }} }}'


def _frames(frames: Iterable[Frame], beside: dict[str, str]) -> Iterator[str]:
    """Yield clusters with titles, including the weights beside their boxes.

    A title is a separate box above the first one: arrows avoid boxes, but cross the labels of clusters.
    """
    for frame in frames:
        title = f"{frame.id}_title"
        yield f"subgraph cluster_{frame.id} {{ {_SIDE if frame.is_side else _FRAME}"
        yield f'{title} [label=<<b>{in_dot_label(frame.title)}</b>>, shape=plain, style="", fontcolor="#444444"]'
        below = [*frame.boxes[:1], *(f"{inner.id}_title" for inner in frame.frames[:1])]
        yield from (f"{title} -> {box} [style=invis, weight=0]" for box in below)
        yield " ".join(f"{box};" for box in frame.boxes)
        yield from (_together(box, beside.pop(box)) for box in frame.boxes if box in beside)
        yield from _frames(frame.frames, beside)
        yield "}"


def _sides(scene: Scene) -> Iterator[str]:
    """Place the sides of a comparison at the top, next to each other."""
    sides = [frame for frame in scene.frames if frame.is_side]
    fed = {edge.target for edge in scene.edges if edge.style != "dotted"}
    for side in sides:
        yield from (f"{side.id}_title -> {box} [style=invis]" for box in boxes_in([side]) if box not in fed)
    if sides:
        yield f"{' -> '.join(f'{side.id}_title' for side in sides)} [style=invis, constraint=false]"


def _columns(scene: Scene, columns: Sequence[Sequence[str]], beside: dict[str, str]) -> Iterator[str]:
    """Yield each column as an invisible cluster that starts at the top, next to each other."""
    framed = {box: frame for frame in scene.frames for box in boxes_in([frame])}
    heads = [f"column_{number}" for number in range(len(columns))]
    shown = dict.fromkeys(heads, "style=invis, shape=point")
    for head, side in zip(heads, scene.sides, strict=False):
        shown[head] = f'label=<<b>{in_dot_label(side.title)}</b>>, shape=plain, style="", fontcolor="#444444"'
    fed = {edge.target for edge in scene.edges if edge.style == "solid"}
    for head, boxes in zip(heads, columns, strict=True):
        free = [box for box in boxes if box not in framed]
        yield f'subgraph cluster_{head} {{ peripheries=0; label=""; {head} [{shown[head]}];'
        yield " ".join(f"{box};" for box in free)
        yield from (_together(box, beside.pop(box)) for box in free if box in beside)
        yield from _frames(dict.fromkeys(framed[box] for box in boxes if box in framed), beside)
        yield "}"
        yield from (f"{head} -> {box} [style=invis]" for box in boxes if box not in fed)
    yield f"{' -> '.join(heads)} [style=invis, constraint=false]"


def _note_edges(scene: Scene, columns: Sequence[Sequence[str]]) -> Iterator[str]:
    """Connect a truncated graph: open ends lead to the note, and the note to outputs that nothing drawn produces.

    With columns, the note is in the last one, and only open ends of that column lead to it.
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
