"""Two graphs side by side, with removed, added and changed nodes coloured."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from torch_ir.draw.elements import Box, Frame, Item, Scene
from torch_ir.draw.focus import focused
from torch_ir.draw.marks import on_both, signed
from torch_ir.draw.picture_files import write_scene
from torch_ir.draw.scene import build_scene
from torch_ir.errors import DrawError
from torch_ir.ir import IR
from torch_ir.ir.graph.given_graph import require_graph

Marks = tuple[Mapping[str, str], Mapping[str, str]]
CONTEXT = 2  # boxes around a difference
_SIDES = ("before", "after")
_MOST_BOXES = 60  # of both sides, up to which they are drawn completely


def render_pair(
    before: IR,
    after: IR,
    path: str | os.PathLike[str],
    marks: Marks,
    *,
    titles: tuple[str, str] = _SIDES,
    heading: tuple[str, ...] = (),
    only_differences: bool | None = None,
    legend: bool | None = None,
    **options: Any,
) -> None:
    """Draw two graphs side by side into a file; `marks` say which nodes of each are removed, added or changed.

    They are what `diff(before, after).marks()` returns. Of large graphs only the differences are drawn, with a few
    boxes around each; the other options are those of `render`.
    """
    require_graph(before, "render_pair")
    require_graph(after, "render_pair")
    scene = build_pair(before, after, marks, titles, heading, only_differences, **options)
    write_scene(scene, path, legend=legend)


def build_pair(
    before: IR,
    after: IR,
    marks: Marks,
    titles: tuple[str, str] = _SIDES,
    heading: tuple[str, ...] = (),
    only_differences: bool | None = None,
    **options: Any,
) -> Scene:
    """Return the scene of both: one frame each; the options are those of `build_scene`."""
    options = {"max_nodes": 0, "include_weights": False, **options}
    sides = [signed(side) for side in on_both(_built(before, after, marks, options))]
    count = _count(sides)
    is_cut = count > _MOST_BOXES if only_differences is None else only_differences
    if not any(box.mark for side in sides for box in side.boxes):
        heading = (*heading, "no difference is visible")
    elif is_cut and not options.get("focus"):
        sides = _differences(sides)
        left = count - _count(sides)
        message = f"differences, and {CONTEXT} boxes around each; {left} more boxes are equal on both sides"
        heading = (*heading, message) if left > 0 else heading
    framed = [_framed(side, name, title) for side, name, title in zip(sides, _SIDES, titles, strict=True)]
    return replace(
        framed[0],
        items=tuple(item for side in framed for item in side.items),
        frames=tuple(frame for side in framed for frame in side.frames),
        heading=heading,
        legend=framed[0].legend or framed[1].legend,
        note="; ".join(dict.fromkeys(side.note for side in framed if side.note)),
        scale=None,
        wraps=False,
    )


def _built(before: IR, after: IR, marks: Marks, options: dict[str, Any]) -> list[Scene]:
    """Build both scenes; a side without the requested focus shows what the other one shows."""
    graphs = list(zip((before, after), marks, strict=True))
    found: list[Scene | None] = []
    errors: list[DrawError] = []
    for ir, mark in graphs:
        try:
            found.append(build_scene(ir, marks=mark, **options))
        except DrawError as error:
            found.append(None)
            errors.append(error)
    shown = next((side for side in found if side), None)
    if shown is None:
        raise errors[0]
    whole = {**options, "focus": ()}
    return [
        side or _as_shown(build_scene(ir, marks=mark, **whole), shown)
        for side, (ir, mark) in zip(found, graphs, strict=True)
    ]


def _count(sides: Iterable[Scene]) -> int:
    return sum(box.kind != "stub" for side in sides for box in side.boxes)


def _differences(sides: Sequence[Scene]) -> list[Scene]:
    """Return each side around its differences; a side without any shows what the other one shows."""
    centres = [{name for box in side.boxes if box.mark for name in box.names} for side in sides]
    found = [focused(side, centre, CONTEXT) if centre else side for side, centre in zip(sides, centres, strict=True)]
    for this, other in ((0, 1), (1, 0)):
        if not centres[this]:
            found[this] = _as_shown(sides[this], found[other])
    return found


def _as_shown(side: Scene, other: Scene) -> Scene:
    """Return the nodes of a side that the other one shows; all of them if there are none."""
    shared = _names(other) & _names(side)
    return focused(side, shared, radius=0) if shared else side


def _names(scene: Scene) -> set[str]:
    return {name for box in scene.boxes if box.kind != "input" for name in box.names}


def _framed(scene: Scene, side: str, title: str) -> Scene:
    """Return the scene inside one frame, with ids that differ from the other side's."""
    items = tuple(_renamed(item, side) for item in scene.items)
    framed: set[str] = set()
    frames = tuple(_renamed_frame(frame, side, framed) for frame in scene.frames)
    free = tuple(item.id for item in items if isinstance(item, Box) and item.id not in framed)
    return replace(scene, items=items, frames=(Frame(side, title, free, frames, is_side=True),), open_ends=())


def _renamed(item: Item, side: str) -> Item:
    if isinstance(item, Box):  # without emphasis on a centre: colours already show what matters
        names = tuple(f"{side}/{name}" for name in item.names)
        return replace(item, id=f"{side}_{item.id}", names=names, is_centre=False)
    return replace(item, source=f"{side}_{item.source}", target=f"{side}_{item.target}")


def _renamed_frame(frame: Frame, side: str, framed: set[str]) -> Frame:
    boxes = tuple(f"{side}_{box}" for box in frame.boxes)
    framed.update(boxes)
    inner = tuple(_renamed_frame(each, side, framed) for each in frame.frames)
    return replace(frame, id=f"{side}_{frame.id}", boxes=boxes, frames=inner)
