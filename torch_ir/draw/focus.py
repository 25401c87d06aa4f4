"""Neighbourhoods: the boxes before and after some boxes, with stubs where the graph continues."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace

from torch_ir.draw.elements import Box, Edge, Frame, Item, Scene
from torch_ir.errors import DrawError, did_you_mean
from torch_ir.ir import IR
from torch_ir.ir.graph.origins import is_within, modules_around

Neighbours = Mapping[str, Collection[str]]


def named_by(ir: IR, focus: str | Collection[str]) -> set[str]:
    """Resolve names to nodes: each is a node, an input, or a module, which means all its nodes."""
    names = {tensor.name for tensor in ir.graph_inputs} | {node.name for node in ir.nodes}
    found: set[str] = set()
    for word in [focus] if isinstance(focus, str) else focus:
        inside = {node.name for node in ir.nodes if word and is_within(node.origin.module, word)}
        if word not in names and not inside:
            modules = {path for node in ir.nodes for path in modules_around(node.origin.module) if path}
            raise DrawError(f"unknown node, input or module {word!r}{did_you_mean(word, [*names, *modules])}")
        found |= {word} if word in names else inside
    return found


def focused(scene: Scene, names: Collection[str], radius: int) -> Scene:
    """Return the boxes of these nodes, and those up to `radius` boxes before and after them."""
    if radius < 0:
        raise DrawError(f"the radius must be at least 0, not {radius}")
    centre = {box.id for box in scene.boxes if not set(names).isdisjoint(box.names)}
    if not centre:
        raise DrawError(f"{sorted(names)[0]!r} depends on weights alone, which a folded drawing does not show")
    after, before = _neighbours(scene.edges)
    kept = _reached(centre, before, radius) | _reached(centre, after, radius)
    kept |= {edge.source for edge in scene.edges if edge.style == "dotted" and edge.target in kept}
    items = [
        replace(item, is_centre=True) if isinstance(item, Box) and item.id in centre else item
        for item in scene.items
        if (item.id in kept if isinstance(item, Box) else {item.source, item.target} <= kept)
    ]
    boxes = {box.id: box for box in scene.boxes}
    ends = _stubs("before", kept, before, boxes), items, _stubs("after", kept, after, boxes)
    cut = (item for part in ends for item in part)
    return replace(scene, items=tuple(cut), open_ends=(), frames=tuple(_frames(scene.frames, kept)), wraps=False)


def _neighbours(edges: Iterable[Edge]) -> tuple[Neighbours, Neighbours]:
    """Return the boxes right after each box, and those right before it; weights are not neighbours."""
    after: dict[str, dict[str, None]] = {}
    before: dict[str, dict[str, None]] = {}
    for edge in edges:
        if edge.style == "solid":
            after.setdefault(edge.source, {})[edge.target] = None
            before.setdefault(edge.target, {})[edge.source] = None
    return after, before


def _reached(centre: Collection[str], neighbours: Neighbours, radius: int) -> set[str]:
    found, rim = set(centre), set(centre)
    for _ in range(radius):
        rim = {box for inner in rim for box in neighbours.get(inner, ())} - found
        found |= rim
    return found


def _stubs(side: str, kept: set[str], neighbours: Neighbours, boxes: Mapping[str, Box]) -> Iterator[Item]:
    """Yield a dashed stub for each box with neighbours beyond the cut, which names a single one, or counts them."""
    for box in [box for box in boxes if box in kept]:
        beyond = [boxes[other] for other in neighbours.get(box, ()) if other not in kept]
        if beyond:
            stub = Box(f"{side}_{box}", (_stub_text(beyond),), "stub")
            yield stub
            yield Edge(*((stub.id, box) if side == "before" else (box, stub.id)), style="dashed")


def _stub_text(beyond: list[Box]) -> str:
    if len(beyond) > 1:
        return f"… {len(beyond)} more"
    return f"… {(beyond[0].names or beyond[0].lines)[0]}"


def _frames(frames: Iterable[Frame], kept: set[str]) -> Iterator[Frame]:
    for frame in frames:
        inner, own = tuple(_frames(frame.frames, kept)), tuple(box for box in frame.boxes if box in kept)
        if inner or own:
            yield replace(frame, boxes=own, frames=inner)
