"""The sides of a training step: forward at the left, backward and update at the right."""

from __future__ import annotations

from dataclasses import replace

from torch_ir.draw.elements import Scene, Side
from torch_ir.ir import IR
from torch_ir.ir.graph.training_parts import part_of_path

_FORWARD, _BACKWARD, _BOTH = "forward", "backward", "backward and update"


def on_sides(scene: Scene, ir: IR) -> Scene:
    """Return the scene of a training step in two columns; any other scene as it is."""
    later = {node.name: part for node in ir.nodes if (part := part_of_path(node.origin.module))}
    right = [box for box in scene.boxes if any(name in later for name in box.names)]
    left = [box for box in scene.boxes if box.kind == "op" and box not in right]
    if not left or not right:
        return scene
    title = _BOTH if len({later[name] for box in right for name in box.names if name in later}) > 1 else _BACKWARD
    sides = (Side(_FORWARD, tuple(box.id for box in left)), Side(title, tuple(box.id for box in right)))
    return replace(scene, sides=sides, wraps=True)
