"""Marks: how the nodes of a graph differ from those of another one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

from torch_ir.draw.elements import Box, Scene

MARKS = ("removed", "added", "changed")  # others, such as `same` and `renamed`, are not coloured


def marked(scene: Scene, marks: Mapping[str, str]) -> Scene:
    """Mark the boxes of nodes that differ; a box of several nodes shows how many do."""
    items = (_marked(item, marks) if isinstance(item, Box) and item.kind != "input" else item for item in scene.items)
    return replace(scene, items=tuple(items))


def _marked(box: Box, marks: Mapping[str, str]) -> Box:
    counts = Counter(mark for name in box.names if (mark := marks.get(name, "")) in MARKS)
    if not counts:
        return box
    if len(counts) == 1 and counts.total() == len(box.names):
        return replace(box, mark=next(iter(counts)))
    text = ", ".join(f"{counts[mark]} {mark}" for mark in MARKS if counts[mark])
    return replace(box, mark="changed", lines=(*box.lines, text))
