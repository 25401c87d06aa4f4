"""Build the scene of a graph: its boxes, arrows and frames."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import EllipsisType

from torch_ir.draw.assertions import without_checks
from torch_ir.draw.depth import Parts, collapsed, flattened
from torch_ir.draw.elements import Box, Edge, Item, Scene, Side
from torch_ir.draw.focus import focused, named_by
from torch_ir.draw.folding import Fold, Folding, folded, nodes_in, times, unfolded, without_ready
from torch_ir.draw.heat import heated
from torch_ir.draw.marks import MARKS, marked
from torch_ir.draw.named_placeholders import named_placeholders
from torch_ir.draw.node_texts import OPAQUE
from torch_ir.draw.scene_builder import SceneBuilder
from torch_ir.ir import IR, OpNode
from torch_ir.ir.graph.training_parts import part_of_path
from torch_ir.ir.text.amounts import plural

RADIUS = 3
_FORWARD, _BACKWARD, _BOTH = "forward", "backward", "backward and update"


def build_scene(
    ir: IR,
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
    marks: Mapping[str, str] | None = None,
    assertions: bool = False,
) -> Scene:
    """Build the scene of the first `max_nodes` nodes of a graph (all, if that is 0 or None); placeholders are red.

    With `fold`, consecutive equal layers are drawn once, and `max_nodes` counts what is drawn; with `open_calls` too,
    the nodes inside a call are drawn instead of it. With `depth`, a module at that depth is one box. `focus` names
    nodes or modules: only boxes up to `radius` before and after them are drawn. `heat` maps node names to numbers that
    become colours, in a `unit`; `marks` say how nodes differ from another graph. Nodes that only assert are omitted and
    counted, unless `assertions` is set, or they are marked, focused or placeholders. By default, a scene has 30 nodes
    with their weights, a folded one 300 nodes without.
    """
    placeholders = named_placeholders(placeholders, ir)
    if depth is not None:
        ir = flattened(ir, placeholders)
    left_out = 0
    if not assertions:
        ir, left_out = without_checks(ir, _emphasised(placeholders, focus, marks or {}))
    if depth is not None:
        ir.nodes = without_ready(ir, ir.nodes)
    red = {node.name for node in ir.nodes if node.name in placeholders or node.op_type.startswith(OPAQUE)}
    centre = named_by(ir, focus)
    shown, parts = (ir, {}) if depth is None else collapsed(ir, depth)
    is_short = fold or depth is not None
    differ = _differ(parts, red, marks or {})
    folding = folded(shown, differ, open_calls and depth is None) if fold else unfolded(shown)
    if include_weights is None:
        include_weights = not is_short
    count = None if centre else (300 if is_short else 30) if isinstance(max_nodes, EllipsisType) else max_nodes
    scene = _set_up(SceneBuilder(folding, include_weights, red, is_short, parts), folding, count)
    legend = _legend(len(red), is_lowered=bool(placeholders))
    scene = replace(scene, legend=legend, note=_note(left_out, scene), wraps=is_short)
    if depth is not None:
        scene = replace(scene, items=tuple(_merged(scene.items)))
    scene = _on_sides(scene, ir)
    if marks:
        scene = marked(scene, marks)
    if heat is not None:
        scene = heated(scene, heat, unit)
    return focused(scene, centre, radius) if centre else scene


def _set_up(builder: SceneBuilder, folding: Folding, max_nodes: int | None) -> Scene:
    ir = folding.ir
    nodes = list(nodes_in(folding.items))
    count = len(nodes) if max_nodes is None or max_nodes <= 0 else max_nodes
    shown, hidden = nodes[:count], nodes[count:]
    builder.add_inputs(ir)
    folds = _folds(folding.items)
    for node in shown:
        builder.add_node(node, ir.functions, folds.get(node))
    builder.add_outputs(ir)
    builder.add_updates(ir)
    if hidden:
        builder.items.append(Box("note", (f"... {len(hidden)} more nodes ...",), "note"))
    return Scene(ir.model_name, tuple(builder.items), builder.open_ends(hidden), tuple(builder.frames(folding.items)))


def _differ(parts: Parts, red: Collection[str], marks: Mapping[str, str]) -> dict[str, object]:
    """Return what must be equal for nodes to be drawn as one, besides what they compute."""
    own: dict[str, object] = {name: (name in red, marks.get(name, "same")) for name in {*red, *marks}}
    inside = {name: [own.get(node.name) for node in nodes] for name, nodes in parts.items()}
    return own | {name: facts for name, facts in inside.items() if any(facts)}


def _emphasised(placeholders: Collection[str], focus: str | Collection[str], marks: Mapping[str, str]) -> set[str]:
    """Return the names of nodes that are placeholders, focused or marked."""
    focused_names = [focus] if isinstance(focus, str) else focus
    return {*placeholders, *focused_names, *(name for name, mark in marks.items() if mark in MARKS)}


def _note(left_out: int, scene: Scene) -> str:
    """Return notes on the assertions that are not drawn, and on pale boxes."""
    omitted = f"{left_out} assertion{'s are' if left_out > 1 else ' is'} not drawn" if left_out else ""
    pale = "pale boxes lead to no result" if any(box.is_dead for box in scene.boxes) else ""
    return "; ".join(filter(None, (omitted, pale)))


def _legend(count: int, is_lowered: bool) -> str:
    """Return the caption of the red boxes: what a target lacks, or what capture could not see."""
    if not count:
        return ""
    return f"{plural(count, 'placeholder')}: {'no lowering' if is_lowered else 'data left torch here'}"


def _folds(items: Sequence[OpNode | Fold], fold: Fold | None = None) -> dict[OpNode, Fold]:
    """Map each node to its innermost fold."""
    found: dict[OpNode, Fold] = {}
    for item in items:
        if isinstance(item, Fold):
            found.update(_folds(item.items, item))
        elif fold is not None:
            found[item] = fold
    return found


def _merged(items: Iterable[Item]) -> Iterator[Item]:
    """Merge parallel arrows between modules into one."""
    items = list(items)
    counts = Counter((item.source, item.target) for item in items if isinstance(item, Edge))
    for item in items:
        if isinstance(item, Box) or counts[item.source, item.target] == 1:
            yield item
        elif count := counts.pop((item.source, item.target), 0):
            yield replace(item, label=times(count))


def _on_sides(scene: Scene, ir: IR) -> Scene:
    """Return the scene of a training step in two columns; any other scene as it is."""
    later = {node.name: part for node in ir.nodes if (part := part_of_path(node.origin.module))}
    right = [box for box in scene.boxes if any(name in later for name in box.names)]
    left = [box for box in scene.boxes if box.kind == "op" and box not in right]
    if not left or not right:
        return scene
    title = _BOTH if len({later[name] for box in right for name in box.names if name in later}) > 1 else _BACKWARD
    sides = (Side(_FORWARD, tuple(box.id for box in left)), Side(title, tuple(box.id for box in right)))
    return replace(scene, sides=sides, wraps=True)
