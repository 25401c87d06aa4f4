"""Choose what to draw of a large graph so that it stays readable."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from torch_ir.draw.depth import depth_of
from torch_ir.draw.elements import Scene
from torch_ir.ir import IR

MOST_BOXES = 120
_WHOLE, _WITH_WEIGHTS = 40, 30  # nodes
View = dict[str, Any]  # options of `build_scene`


def legible(
    graphs: Sequence[IR], build: Callable[..., Scene], *, most_boxes: int = MOST_BOXES, may_collapse: bool = True
) -> tuple[Scene, str]:
    """Return the most detailed readable scene of some graphs, and a description of what it omits.

    Small graphs are drawn completely; in large ones equal layers are drawn once, and if that is not enough, modules
    become boxes, innermost first. `build` makes a scene from a view.
    """
    nodes = sum(len(ir.nodes) for ir in graphs)
    for view, note in _views(nodes, max(map(depth_of, graphs)) if may_collapse else 0):
        scene = build(**view)
        drawn = len(scene.boxes)
        message = f"{nodes:,} nodes in {drawn:,} boxes: {note}" if note and drawn < nodes else ""
        if drawn <= most_boxes:
            break
    return scene, message


def _views(nodes: int, deepest: int) -> Iterator[tuple[View, str]]:
    """Yield views from the most detailed to the coarsest."""
    if nodes <= _WHOLE:
        yield {"max_nodes": 0, "include_weights": nodes <= _WITH_WEIGHTS}, ""
    yield {"max_nodes": 0, "fold": True}, "equal layers are drawn once"
    for depth in range(deepest, 0, -1):
        message = f"modules at depth {depth} are one box each, and equal ones are drawn once"
        yield {"max_nodes": 0, "fold": True, "depth": depth}, message
