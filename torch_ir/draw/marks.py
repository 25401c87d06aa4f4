"""Marks: how the nodes of a graph differ from those of another one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

from torch_ir.draw.elements import Box, Item, Scene

MARKS = ("removed", "added", "changed")  # others, such as `same` and `renamed`, are not coloured
SIGNS = {"removed": "\N{MINUS SIGN}", "added": "+", "changed": "~"}


def marked(scene: Scene, marks: Mapping[str, str]) -> Scene:
    """Mark the boxes of nodes that differ; a box of several nodes shows how many do."""
    items = (_marked(item, marks) if isinstance(item, Box) and item.kind != "input" else item for item in scene.items)
    return replace(scene, items=tuple(items))


def on_both(sides: Sequence[Scene]) -> list[Scene]:
    """Return two marked scenes in which modules that both have are changed, with their numbers of operators.

    A module that lost four of its seven operators is neither removed nor added.
    """
    found = [{box.id: box for box in side.boxes if box.kind == "op"} for side in sides]
    both = {
        name: [len(side[name].names) for side in found]
        for name in found[0].keys() & found[1].keys()
        if any(side[name].mark for side in found) and any(len(side[name].names) > 1 for side in found)
    }
    return [replace(side, items=tuple(_changed(item, both) for item in side.items)) for side in sides]


def signed(scene: Scene) -> Scene:
    """Return a scene in which marked boxes have a sign, so that colours are not needed to tell them apart."""
    return replace(scene, items=tuple(_signed(item) if isinstance(item, Box) else item for item in scene.items))


def _changed(item: Item, both: Mapping[str, list[int]]) -> Item:
    if not isinstance(item, Box) or item.id not in both:
        return item
    before, after = both[item.id]
    counts = (f"{before} → {after} ops",) if before != after else ()
    return replace(item, mark="changed", lines=(*item.lines, *counts))


def _signed(box: Box) -> Box:
    first, *rest = box.lines
    return replace(box, lines=(f"{SIGNS[box.mark]} {first}", *rest)) if box.mark in SIGNS else box


def _marked(box: Box, marks: Mapping[str, str]) -> Box:
    counts = Counter(mark for name in box.names if (mark := marks.get(name, "")) in MARKS)
    if not counts:
        return box
    if len(counts) == 1 and counts.total() == len(box.names):
        return replace(box, mark=next(iter(counts)))
    text = ", ".join(f"{counts[mark]} {mark}" for mark in MARKS if counts[mark])
    return replace(box, mark="changed", lines=(*box.lines, text))
