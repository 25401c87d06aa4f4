"""The scene: which boxes and arrows a picture of a graph has, before any format."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Literal

from torch_ir.ir import IR, Dim, OpNode, TensorMeta

Kind = Literal["input", "op", "weight", "output", "note", "placeholder"]


@dataclass(frozen=True)
class Box:
    """A box; `id` is made of letters, digits and underscores, `lines` are plain text from the graph."""

    id: str
    lines: tuple[str, ...]
    kind: Kind
    op_type: str = ""


@dataclass(frozen=True)
class Edge:
    """An arrow from box to box; weights come in dotted."""

    source: str
    target: str
    label: str = ""
    style: Literal["solid", "dotted"] = "solid"


Item = Box | Edge


@dataclass(frozen=True)
class Scene:
    """Boxes and edges in the order of the program; `open_ends` are the boxes whose values go on beyond the cut."""

    title: str
    items: tuple[Item, ...]
    open_ends: tuple[str, ...] = ()

    @property
    def boxes(self) -> list[Box]:
        return [item for item in self.items if isinstance(item, Box)]

    @property
    def edges(self) -> list[Edge]:
        return [item for item in self.items if isinstance(item, Edge)]


def build_scene(
    ir: IR, max_nodes: int | None = 30, include_weights: bool = True, placeholders: Collection[str] = ()
) -> Scene:
    """The first `max_nodes` nodes of a graph (all, if that is 0 or None); nodes named in `placeholders` stand out."""
    count = len(ir.nodes) if max_nodes is None or max_nodes <= 0 else max_nodes
    shown, hidden = ir.nodes[:count], ir.nodes[count:]
    stage = _Stage(include_weights)
    for tensor in ir.graph_inputs:
        stage.add_box("input_", tensor.name, (f"Input: {tensor.name}", shape_text(tensor)), "input", [tensor])
    for node in shown:
        stage.add_node(node, "placeholder" if node.name in placeholders else "op")
    for index, tensor in enumerate(ir.graph_outputs):
        stage.add_output(index, tensor)
    if hidden:
        stage.items.append(Box("note", (f"... {len(hidden)} more nodes ...",), "note"))
    return Scene(ir.model_name, tuple(stage.items), stage.open_ends(hidden))


class _Stage:
    """The scene while it is being set: what stands already, and which box gives which tensor."""

    def __init__(self, include_weights: bool) -> None:
        self.include_weights = include_weights
        self.items: list[Item] = []
        self._givers: dict[TensorMeta, str] = {}
        self._ids: set[str] = set()

    def add_box(
        self, prefix: str, name: str, lines: tuple[str, ...], kind: Kind, gives: Iterable[TensorMeta], op_type: str = ""
    ) -> str:
        box_id = self._fresh_id(prefix, name)
        self.items.append(Box(box_id, lines, kind, op_type))
        self._givers.update((tensor, box_id) for tensor in gives)
        return box_id

    def add_node(self, node: OpNode, kind: Kind) -> None:
        shape = tuple(shape_text(tensor) for tensor in node.outputs[:1])
        lines = (short_op_name(node.op_type), *shape)
        box_id = self.add_box("op_", node.name, lines, kind, node.outputs, node.op_type)
        for tensor in node.inputs:
            self._connect(tensor, box_id, shape_text(tensor))

    def add_output(self, index: int, tensor: TensorMeta) -> None:
        box_id = self.add_box("output_", str(index), ("Output", shape_text(tensor)), "output", [])
        self._connect(tensor, box_id, "")

    def open_ends(self, hidden: Iterable[OpNode]) -> tuple[str, ...]:
        """The boxes of inputs and nodes that the hidden nodes read, in order of their first use there."""
        read = (tensor for node in hidden for tensor in node.inputs if tensor.param is None)
        return tuple(dict.fromkeys(self._givers[tensor] for tensor in read if tensor in self._givers))

    def _connect(self, tensor: TensorMeta, target: str, label: str) -> None:
        """An edge from whoever gives the tensor; a weight gets its box at its first use."""
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


def short_op_name(op_type: str) -> str:
    """`aten.linear.default` as `linear`."""
    return op_type.removeprefix("aten.").removesuffix(".default")


def shape_text(tensor: TensorMeta) -> str:
    """`1x3x224x224`, `batchx8`, `(2*seq + 1)x8`, or `scalar`."""
    return "x".join(map(_dim_text, tensor.shape)) or "scalar"


def _dim_text(dim: Dim) -> str:
    return str(dim) if re.fullmatch(r"\w+", str(dim)) else f"({dim})"
