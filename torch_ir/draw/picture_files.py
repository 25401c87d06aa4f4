"""Draw a graph into a file: SVG and PNG with Graphviz, DOT and Mermaid as text."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from pathlib import Path
from types import EllipsisType

from torch_ir.draw.dot import to_dot
from torch_ir.draw.elements import Scene
from torch_ir.draw.graphviz import PATIENCE, picture, with_tips
from torch_ir.draw.mermaid import to_mermaid
from torch_ir.draw.scene import RADIUS, build_scene
from torch_ir.errors import DrawError
from torch_ir.ir import IR
from torch_ir.ir.files.atomic_write import write_bytes, write_text
from torch_ir.ir.graph.given_graph import ExampleInputs, Model, graph_of

PICTURES = ("png", "svg", "pdf")
_OTHERS = ("bmp", "doc", "eps", "gif", "htm", "html", "jpeg", "jpg", "json", "onnx", "ps", "tif", "tiff", "webp")


def render(
    ir: IR | Model,
    path: str | os.PathLike[str],
    max_nodes: int | EllipsisType | None = ...,
    include_weights: bool | None = None,
    placeholders: Collection[str] = (),
    fold: bool = False,
    open_calls: bool = False,
    *,
    depth: int | None = None,
    focus: str | Collection[str] = (),
    radius: int = RADIUS,
    heat: Mapping[str, float] | None = None,
    unit: str = "",
    legend: bool | None = None,
    assertions: bool = False,
    example_inputs: ExampleInputs | None = None,
) -> None:
    """Draw a graph into a file; the suffix selects the format.

    It is .svg, .png, .pdf, .dot, .md, or Mermaid text for any other, such as .mmd. A model is captured first,
    with `example_inputs`.

    `fold` draws consecutive equal layers once, `open_calls` with the nodes inside calls. `depth` draws every module at
    that depth as one box. `focus` draws only the neighbourhood of a node or module, up to `radius` boxes away. `heat`
    colours boxes by a number for each node name, in a `unit`. By default, a drawing shows the first 30 nodes with their
    weights, one with `fold` or `depth` the first 300 without; `max_nodes=0` shows all. `legend` explains the colours in
    SVG and PNG; by default in all but small drawings. Nodes that only assert are omitted unless `assertions` is set.
    """
    scene = build_scene(
        graph_of(ir, example_inputs, "render"),
        max_nodes,
        include_weights,
        placeholders,
        fold,
        open_calls,
        depth=depth,
        focus=focus,
        radius=radius,
        heat=heat,
        unit=unit,
        assertions=assertions,
    )
    write_scene(scene, path, legend=legend)


def write_scene(scene: Scene, path: str | os.PathLike[str], kind: str = "", legend: bool | None = None) -> None:
    """Write a scene to a file, in the format of its suffix unless `kind` is given."""
    target = Path(path)
    kind = kind or target.suffix.lower().removeprefix(".")
    if kind in _OTHERS:
        raise DrawError(
            f"cannot draw {target}; expected .svg, .png, .pdf, .dot, .md or .mmd (for a page, use `explore`)"
        )
    if kind in PICTURES:
        write_bytes(target, drawn(scene, kind, legend))
    else:
        write_text(target, as_text(scene, kind, legend))


def drawn(scene: Scene, kind: str, legend: bool | None = None, patience: int = PATIENCE) -> bytes:
    """Return a scene as `svg`, `png` or `pdf`; in SVG, a box has the name of its node as id, and a tooltip."""
    found = picture(to_dot(scene, legend), kind, patience)
    return with_tips(found, {box.id: box.tip for box in scene.boxes}) if kind == "svg" else found


def as_text(scene: Scene, kind: str = "mermaid", legend: bool | None = None) -> str:
    """Return a scene as text: `dot`, `md`, or Mermaid for any other."""
    if kind == "dot":
        return to_dot(scene, legend)
    return f"```mermaid\n{to_mermaid(scene)}\n```\n" if kind == "md" else to_mermaid(scene)
