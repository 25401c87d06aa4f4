"""The scene: which boxes, arrows and frames a picture of a graph has, before any format."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import EllipsisType
from typing import Literal

from torch_ir.draw.families import family_of_node
from torch_ir.draw.folding import Fold, Folding, folded, nodes_in, times, unfolded
from torch_ir.ir import IR, OpNode, TensorMeta
from torch_ir.ir.text import shape_text

Kind = Literal["input", "op", "weight", "output", "note", "placeholder", "decision", "connector"]
DECISION = "torch_ir.decision."
OPAQUE = "opaque."


@dataclass(frozen=True)
class Box:
    """A box; `id` is made of letters, digits and underscores, `lines` are plain text from the graph."""

    id: str
    lines: tuple[str, ...]
    kind: Kind
    family: str = ""


@dataclass(frozen=True)
class Edge:
    """An arrow from box to box; weights come in dotted."""

    source: str
    target: str
    label: str = ""
    style: Literal["solid", "dotted"] = "solid"


@dataclass(frozen=True)
class Frame:
    """A frame around boxes, by their ids, and around other frames."""

    id: str
    title: str
    boxes: tuple[str, ...]
    frames: tuple[Frame, ...]


Item = Box | Edge


@dataclass(frozen=True)
class Scene:
    """Boxes and edges in the order of the program; `open_ends` are the boxes whose values go on beyond the cut."""

    title: str
    items: tuple[Item, ...]
    open_ends: tuple[str, ...] = ()
    frames: tuple[Frame, ...] = ()
    legend: str = ""  # in red
    wraps: bool = False  # a strip that is too long is cut into columns

    @property
    def boxes(self) -> list[Box]:
        return [item for item in self.items if isinstance(item, Box)]

    @property
    def edges(self) -> list[Edge]:
        return [item for item in self.items if isinstance(item, Edge)]


def build_scene(
    ir: IR,
    max_nodes: int | EllipsisType | None = ...,
    include_weights: bool | None = None,
    placeholders: Collection[str] = (),
    fold: bool = False,
    open_calls: bool = False,
) -> Scene:
    """The first `max_nodes` nodes of a graph (all, if that is 0 or None); placeholders stand out.

    With `fold`, equal layers that follow each other are drawn once, and `max_nodes` counts what is drawn; with
    `open_calls` too, what is inside a call is drawn in its place. Unless asked otherwise, a scene has 30 nodes with
    their weights, a folded one 300 nodes without.
    """
    if isinstance(max_nodes, EllipsisType):
        max_nodes = 300 if fold else 30
    if include_weights is None:
        include_weights = not fold
    red = {node.name for node in ir.nodes if node.name in placeholders or node.op_type.startswith(OPAQUE)}
    folding = folded(ir, red, open_calls) if fold else unfolded(ir)
    ir = folding.ir
    nodes = list(nodes_in(folding.items))
    count = len(nodes) if max_nodes is None or max_nodes <= 0 else max_nodes
    shown, hidden = nodes[:count], nodes[count:]
    stage = _Stage(folding, include_weights, red, fold)
    stage.add_inputs(ir)
    modules = _modules_of_folds(folding.items)
    for node in shown:
        stage.add_node(node, ir.functions, modules.get(node, ""))
    stage.add_outputs(ir)
    if hidden:
        stage.items.append(Box("note", (f"... {len(hidden)} more nodes ...",), "note"))
    return Scene(
        ir.model_name,
        tuple(stage.items),
        stage.open_ends(hidden),
        tuple(stage.frames(folding.items)),
        _legend(len(red), is_lowered=bool(placeholders)),
        wraps=fold,
    )


def _legend(count: int, is_lowered: bool) -> str:
    """What the red boxes are: what a target lacks, or what a capture could not see."""
    if not count:
        return ""
    return f"{count} placeholder{'s' if count > 1 else ''}: {'no lowering' if is_lowered else 'data left torch here'}"


class _Stage:
    """The scene while it is being set: what stands already, and which box gives which tensor."""

    def __init__(self, folding: Folding, include_weights: bool, red: Collection[str], is_folded: bool) -> None:
        self.include_weights = include_weights
        self.items: list[Item] = []
        self._folding = folding
        self._red = red
        self._is_folded = is_folded
        self._givers: dict[TensorMeta, str] = {}
        self._boxes: dict[OpNode, str] = {}
        self._ids: set[str] = set()

    def add_box(
        self, prefix: str, name: str, lines: tuple[str, ...], kind: Kind, gives: Iterable[TensorMeta], family: str = ""
    ) -> str:
        box_id = self._fresh_id(prefix, name)
        self.items.append(Box(box_id, lines, kind, family))
        self._givers.update((tensor, box_id) for tensor in gives)
        return box_id

    def add_inputs(self, ir: IR) -> None:
        counts = Counter(map(self._folding.drawn, ir.graph_inputs))
        for tensor, count in counts.items():
            lines = (f"Input: {tensor.name}", shape_text(tensor), *_times(count))
            self.add_box("input_", tensor.name, lines, "input", [tensor])

    def add_node(self, node: OpNode, functions: Mapping[str, IR], module: str) -> None:
        if node.op_type.startswith(DECISION):
            kind: Kind = "decision"
            place = node.attrs.get("place")
            lines: tuple[str, ...] = (f"assumed {node.attrs.get('assumed')}", *([str(place)] if place else []))
        else:
            kind = "placeholder" if node.name in self._red else "op"
            path = (node.origin.module[len(module) :].removeprefix("."),) if node.is_call else ()
            lines = (short_name(node), *filter(None, path), *map(shape_text, node.outputs[:1]))
        box_id = self.add_box("op_", node.name, lines, kind, node.outputs, family_of_node(node, functions))
        self._boxes[node] = box_id
        if self._is_folded:
            self._add_folded_edges(node, box_id)
        else:
            for tensor in node.inputs:
                self._connect(tensor, box_id, shape_text(tensor))

    def add_outputs(self, ir: IR) -> None:
        """A box for each output, and one for all outputs that the same layer gives when it is repeated."""
        counts = Counter(map(self._folding.drawn, ir.graph_outputs)) if self._is_folded else Counter[TensorMeta]()
        for index, tensor in enumerate(map(self._folding.drawn, ir.graph_outputs)):
            if not self._is_folded or tensor in counts:
                lines = ("Output", shape_text(tensor), *_times(counts.pop(tensor, 1)))
                self._connect(tensor, self.add_box("output_", str(index), lines, "output", []), "")

    def _add_folded_edges(self, node: OpNode, box_id: str) -> None:
        """One edge for all that the repetitions of a layer give; labels say only what the box above does not."""
        for tensor, count in Counter(map(self._folding.drawn, dict.fromkeys(node.inputs))).items():
            self._connect(tensor, box_id, " ".join([shape_text(tensor)] * bool(tensor.index) + [*_times(count)]))

    def open_ends(self, hidden: Iterable[OpNode]) -> tuple[str, ...]:
        """The boxes of inputs and nodes that the hidden nodes read, in order of their first use there."""
        read = (self._folding.drawn(tensor) for node in hidden for tensor in node.inputs if tensor.param is None)
        return tuple(dict.fromkeys(self._givers[tensor] for tensor in read if tensor in self._givers))

    def frames(self, items: Sequence[OpNode | Fold]) -> Iterator[Frame]:
        """The frames of folds, around the boxes that they have."""
        for fold in items:
            if isinstance(fold, Fold):
                own = [item for item in fold.items if isinstance(item, OpNode)]
                boxes = tuple(self._boxes[node] for node in own if node in self._boxes)
                inner = tuple(self.frames(fold.items))
                if boxes or inner:
                    yield Frame(self._fresh_id("frame_", fold.module), fold.title, boxes, inner)

    def _connect(self, tensor: TensorMeta, target: str, label: str) -> None:
        """An edge from whoever gives the tensor; a weight gets its box at its first use."""
        tensor = self._folding.drawn(tensor)
        is_weight = tensor.param is not None
        if is_weight and not self.include_weights:
            return
        if is_weight and tensor not in self._givers:
            self.add_box("w_", tensor.name, (tensor.name, shape_text(tensor)), "weight", [tensor])
        if tensor in self._givers:
            self.items.append(Edge(self._givers[tensor], target, label, "dotted" if is_weight else "solid"))

    def _fresh_id(self, prefix: str, name: str) -> str:
        """An id that every format can take; names that differ only in odd characters get a number."""
        wanted = found = prefix + re.sub(r"[^A-Za-z0-9_]", "_", name)
        number = 2
        while found in self._ids:
            found, number = f"{wanted}__{number}", number + 1
        self._ids.add(found)
        return found


def _modules_of_folds(items: Sequence[OpNode | Fold], module: str = "") -> dict[OpNode, str]:
    """The module of the innermost frame around each node."""
    found: dict[OpNode, str] = {}
    for item in items:
        found.update(_modules_of_folds(item.items, item.module) if isinstance(item, Fold) else {item: module})
    return found


def _times(count: int) -> tuple[str, ...]:
    return (times(count),) if count > 1 else ()


def short_name(node: OpNode) -> str:
    """`aten.linear.default` as `linear`, `torch.nn.Conv2d` as `Conv2d`."""
    if node.is_call:
        return node.op_type.rpartition(".")[2]
    return node.op_type.removeprefix("aten.").removesuffix(".default")
