"""Mermaid text, as Markdown viewers draw it: a flow chart of the graph, a pie chart of its operators."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from torch_ir.draw.colours import CENTRE, MARKS
from torch_ir.draw.elements import Box, Edge, Frame, Kind, Scene
from torch_ir.draw.heat import text_on
from torch_ir.draw.node_texts import short_name
from torch_ir.draw.scene import build_scene
from torch_ir.escaping import in_mermaid
from torch_ir.ir import IR
from torch_ir.ir.graph.given_graph import require_graph

_BRACKETS: dict[Kind, tuple[str, str]] = {
    "input": ("[/", "/]"),
    "weight": ("[/", "/]"),
    "output": ("[\\", "/]"),
    "op": ("[", "]"),
    "note": ("[", "]"),
    "placeholder": ("[", "]"),
    "partly": ("[", "]"),
    "stub": ("[", "]"),
    "decision": ("{", "}"),
    "connector": ("((", "))"),
}
_RED = "fill:#f8d0cc,stroke:#c62828,color:#7f1010"
_STYLES = {"placeholder": _RED, "partly": "stroke:#c62828,stroke-width:3px", "stub": "fill:none,stroke:none"}
_MARKS = {mark: f"fill:{fill},stroke:{border}" for mark, (fill, border) in MARKS.items()}
_CENTRE = f"stroke:{CENTRE},stroke-width:4px"
_ARROWS = {"solid": "-->", "dotted": "-.->", "dashed": "-.->"}


def ir_to_mermaid(ir: IR, max_nodes: int | None = 30, include_weights: bool = True) -> str:
    """Return a Mermaid flow chart of the first `max_nodes` nodes of a graph; 0 or None draws all."""
    require_graph(ir, "ir_to_mermaid")
    return to_mermaid(build_scene(ir, max_nodes, include_weights))


def to_mermaid(scene: Scene) -> str:
    """Return a scene as a Mermaid flow chart."""
    lines = ["flowchart TD"]
    lines += [_box(item) if isinstance(item, Box) else _edge(item) for item in scene.items]
    for frame in scene.frames:
        lines += _frame(frame)
    lines += [f"style {box.id} {style}" for box in scene.boxes if (style := _style(box))]
    if scene.heading:
        lines += [f'heading["{"<br/>".join(map(in_mermaid, scene.heading))}"]', f"style heading {_STYLES['stub']}"]
    if scene.scale:
        low, high = f"light: {scene.scale.low}", f"dark: {scene.scale.high}"
        lines += [f'scale["{"<br/>".join(map(in_mermaid, (scene.scale.whole, low, high)))}"]']
    if scene.legend:
        lines += [f'legend["{in_mermaid(scene.legend)}"]', f"style legend {_RED}"]
    if scene.note:
        lines += [f'left_out["{in_mermaid(scene.note)}"]', f"style left_out {_STYLES['stub']}"]
    return "\n    ".join(lines)


def _style(box: Box) -> str:
    """Merge styles; later ones win: kind, heat, difference, focus."""
    heat = f"fill:{box.fill},color:{text_on(box.fill)}" if box.fill else ""
    words = (_STYLES.get(box.kind, ""), heat, _MARKS.get(box.mark, ""), _CENTRE * box.is_centre)
    found = dict(word.split(":") for text in words if text for word in text.split(","))
    return ",".join(f"{name}:{value}" for name, value in found.items())


def generate_op_distribution_pie(ir: IR, top_n: int = 10) -> str:
    """Return a Mermaid pie chart of the `top_n` most frequent operators, with the rest as one slice."""
    require_graph(ir, "generate_op_distribution_pie")
    counts = Counter(map(short_name, ir.nodes)).most_common()
    lines = ["pie showData", 'title "Operator Distribution"']
    lines += [f'"{in_mermaid(name)}" : {count}' for name, count in counts[:top_n]]
    if len(counts) > top_n:
        lines.append(f'"Others" : {sum(count for _, count in counts[top_n:])}')
    return "\n    ".join(lines)


def _box(box: Box) -> str:
    left, right = _BRACKETS[box.kind]
    return f'{box.id}{left}"{"<br/>".join(map(in_mermaid, box.lines))}"{right}'


def _frame(frame: Frame) -> Iterator[str]:
    """Yield a subgraph; boxes named inside it belong to it, wherever they were drawn."""
    yield f'subgraph {frame.id}["{in_mermaid(frame.title)}"]'
    yield from frame.boxes
    for inner in frame.frames:
        yield from _frame(inner)
    yield "end"


def _edge(edge: Edge) -> str:
    label = f'|"{in_mermaid(edge.label)}"|' if edge.label else ""
    return f"{edge.source} {_ARROWS[edge.style]}{label} {edge.target}"
