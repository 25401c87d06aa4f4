"""Columns: cut a drawing that would be one long strip into strips side by side.

An arrow between columns is replaced by two small circles with the same letter.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from torch_ir.draw.elements import Box, Edge, Frame, Scene

_ROWS, _FRAMED_ROWS = 12, 40  # rows of boxes that fit on a page; frames cannot be cut
_SHAPE = 6  # width of a box relative to its height, with the space around it


def in_columns(scene: Scene) -> tuple[Scene, list[list[str]]]:
    """Return the scene without arrows between columns, and the boxes of each column; none if one column suffices."""
    columns = _columns(scene)
    if len(set(columns.values())) < 2:
        return scene, []
    items = list(_cut(scene, columns))
    found: list[list[str]] = [[] for _ in range(1 + max(columns.values()))]
    for box, column in columns.items():
        found[column].append(box)
    return replace(scene, items=tuple(items)), found


def boxes_in(frames: Iterable[Frame]) -> Iterator[str]:
    """Yield the boxes inside frames, also nested ones."""
    for frame in frames:
        yield from frame.boxes
        yield from boxes_in(frame.frames)


def _columns(scene: Scene) -> dict[str, int]:
    """Return the column of each box except weights; frames are never cut."""
    rows = _rows(scene)
    columns = _on_sides(scene, rows) if scene.sides else _by_height(scene, rows)
    if not columns:
        return {}
    for frame in scene.frames:
        boxes = list(boxes_in([frame]))
        columns.update(dict.fromkeys(boxes, columns[boxes[0]]))
    kinds = {box.id: box.kind for box in scene.boxes}
    for edge in reversed(scene.edges):  # an input goes where it is first read, an output below its producer
        if kinds[edge.source] == "input":
            columns[edge.source] = columns[edge.target]
        elif kinds[edge.target] == "output" and edge.source in columns:
            columns[edge.target] = columns[edge.source]
    beyond = [box for box in columns if kinds[box] == "note" or (kinds[box] == "output" and rows[box] == 0)]
    columns.update(dict.fromkeys(beyond, max(columns.values())))  # boxes beyond the cut come last
    return columns


def _on_sides(scene: Scene, rows: Iterable[str]) -> dict[str, int]:
    """Return the columns that the scene gives; boxes that it does not name are in the first."""
    given = {box: number for number, side in enumerate(scene.sides) for box in side.boxes}
    return {box: given.get(box, 0) for box in rows}


def _by_height(scene: Scene, rows: Mapping[str, int]) -> dict[str, int]:
    """Return columns of equal height; none if the drawing is not too tall for one."""
    height = 1 + max(rows.values(), default=0)
    most = _FRAMED_ROWS if scene.frames else _ROWS
    count = round(math.sqrt(height / (_SHAPE * len(rows) / height))) if height > most else 1
    size = height / count if count else height
    return {box: int(row / size) for box, row in rows.items()} if count >= 2 else {}


def _rows(scene: Scene) -> dict[str, int]:
    """Return the length of the longest path to each box."""
    rows = {box.id: 0 for box in scene.boxes if box.kind != "weight"}
    for edge in scene.edges:  # in program order: sources come before targets
        if edge.style == "solid":
            rows[edge.target] = max(rows[edge.target], rows[edge.source] + 1)
    return rows


def _cut(scene: Scene, columns: dict[str, int]) -> Iterator[Box | Edge]:
    """Yield the items with circles for arrows between columns, and assign columns to the circles."""
    letters: dict[str, str] = {}
    for item in scene.items:
        if isinstance(item, Box) or item.style == "dotted" or columns[item.source] == columns[item.target]:
            yield item
            continue
        if item.source not in letters:
            letters[item.source] = letter = _letter(len(letters))
            columns[f"out_{letter}"] = columns[item.source]
            yield Box(f"out_{letter}", (letter,), "connector")
            yield Edge(item.source, f"out_{letter}", item.label)
        letter = letters[item.source]
        here = f"in_{letter}_{columns[item.target]}"
        if here not in columns:
            columns[here] = columns[item.target]
            yield Box(here, (letter,), "connector")
        yield Edge(here, item.target, item.label)


def _letter(number: int) -> str:
    return chr(ord("A") + number) if number < 26 else _letter(number // 26 - 1) + _letter(number % 26)
