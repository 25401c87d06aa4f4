"""Builder of a scene: boxes, arrows and frames are added in program order."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from torch_ir.draw.depth import Parts
from torch_ir.draw.elements import Box, Edge, Frame, Item, Kind
from torch_ir.draw.families import Families
from torch_ir.draw.folding import Fold, Folding, times
from torch_ir.draw.node_texts import DECISION, facts_of, quantized_shape, short_name, weights_text
from torch_ir.ir import IR, OpNode, TensorMeta
from torch_ir.ir.text.amounts import plural
from torch_ir.ir.text.printer import shape_text

_SHOWN_KEYS = 3  # of the buffers that one box changes


class SceneBuilder:
    """The items so far, and the box that produces each tensor; `parts` are the nodes inside collapsed modules."""

    def __init__(
        self, folding: Folding, include_weights: bool, red: Collection[str], is_folded: bool, parts: Parts
    ) -> None:
        self.include_weights = include_weights
        self.items: list[Item] = []
        self._folding = folding
        self._red = red
        self._is_folded = is_folded
        self._parts = parts
        self._nodes = _represented(folding, parts)
        self._dead = _dead_ends(folding.ir)
        self._families = Families()
        self._producers: dict[TensorMeta, str] = {}
        self._boxes: dict[OpNode, str] = {}
        self._ids: set[str] = set()

    def add_box(
        self,
        prefix: str,
        name: str,
        lines: tuple[str, ...],
        kind: Kind,
        outputs: Iterable[TensorMeta],
        family: str = "",
        names: tuple[str, ...] = (),
        tip: str = "",
        is_dead: bool = False,
    ) -> str:
        box_id = self._fresh_id(prefix, name)
        self.items.append(Box(box_id, lines, kind, family, names, tip, is_dead=is_dead))
        self._producers.update((tensor, box_id) for tensor in outputs)
        return box_id

    def add_inputs(self, ir: IR) -> None:
        counts = Counter(map(self._folding.drawn, ir.graph_inputs))
        for tensor, count in counts.items():
            lines = (f"Input: {tensor.name}", shape_text(tensor), *_times(count))
            tip = f"input {tensor.name}: {tensor.dtype} {shape_text(tensor)}"
            self.add_box("input_", tensor.name, lines, "input", [tensor], names=(tensor.name,), tip=tip)

    def add_node(self, node: OpNode, functions: Mapping[str, IR], fold: Fold | None) -> None:
        nodes = self._nodes.get(node, [node])
        if node.op_type.startswith(DECISION):
            kind: Kind = "decision"
            place = node.attrs.get("place")
            lines: tuple[str, ...] = (f"assumed {node.attrs.get('assumed')}", *([str(place)] if place else []))
        else:
            kind = self._kind(nodes)
            path = (fold.title,) if fold and self._only_module(fold) else _path(node, fold)
            lines = (short_name(node), *path, *map(quantized_shape, node.outputs[:1]), *self._inside(node))
        self._boxes[node] = box_id = self.add_box(
            "op_",
            node.name,
            lines,
            kind,
            node.outputs,
            self._families.of(node, functions),
            tuple(each.name for each in nodes),
            facts_of(node, self._parts.get(node.name, ())),
            is_dead=node in self._dead,
        )
        if self._is_folded:
            self._add_folded_edges(node, box_id)
        else:
            for tensor in node.inputs:
                self._connect(tensor, box_id, quantized_shape(tensor))

    def add_outputs(self, ir: IR) -> None:
        """Add a box for each output, and one for all outputs of a repeated layer."""
        counts = Counter(map(self._folding.drawn, ir.graph_outputs)) if self._is_folded else Counter[TensorMeta]()
        for index, tensor in enumerate(map(self._folding.drawn, ir.graph_outputs)):
            if not self._is_folded or tensor in counts:
                lines = ("Output", shape_text(tensor), *_times(counts.pop(tensor, 1)))
                tip = f"output {index}, {tensor.name}: {tensor.dtype} {shape_text(tensor)}"
                self._connect(tensor, self.add_box("output_", str(index), lines, "output", [], tip=tip), "")

    def add_updates(self, ir: IR) -> None:
        """Add a box for the buffers and inputs that a drawn node changes, by key; one for all that it changes."""
        targets: dict[str | None, dict[str, None]] = {}
        for target, value in ir.mutations:
            source = self._producers.get(self._folding.drawn(value))
            targets.setdefault(source, {})[target.key or target.name] = None
        for number, (source, keys) in enumerate(targets.items()):
            more = [f"and {len(keys) - _SHOWN_KEYS} more"] if len(keys) > _SHOWN_KEYS else []
            lines = ("Updates", *list(keys)[:_SHOWN_KEYS], *more)
            box = self.add_box("update_", str(number), lines, "output", [], tip=f"new values of {', '.join(keys)}")
            if source is not None:
                self.items.append(Edge(source, box))

    def open_ends(self, hidden: Iterable[OpNode]) -> tuple[str, ...]:
        """Return the boxes of inputs and nodes that the hidden nodes read, in order of first use."""
        read = (self._folding.drawn(tensor) for node in hidden for tensor in node.inputs if tensor.param is None)
        return tuple(dict.fromkeys(self._producers[tensor] for tensor in read if tensor in self._producers))

    def frames(self, items: Sequence[OpNode | Fold]) -> Iterator[Frame]:
        """Yield the frames of folds, around their boxes; a module that is one box has none."""
        for fold in items:
            if isinstance(fold, Fold) and not self._only_module(fold):
                own = [item if isinstance(item, OpNode) else self._only_module(item) for item in fold.items]
                boxes = tuple(self._boxes[node] for node in own if node in self._boxes)
                inner = tuple(self.frames(fold.items))
                if boxes or inner:
                    yield Frame(self._fresh_id("frame_", fold.module), fold.title, boxes, inner)

    def _only_module(self, fold: Fold) -> OpNode | None:
        """Return the collapsed module if a fold repeats only that."""
        only = fold.items[0]
        return only if len(fold.items) == 1 and isinstance(only, OpNode) and only.name in self._parts else None

    def _kind(self, nodes: Sequence[OpNode]) -> Kind:
        red = sum(node.name in self._red for node in nodes)
        return "op" if not red else "placeholder" if red == len(nodes) else "partly"

    def _inside(self, node: OpNode) -> tuple[str, ...]:
        """Return the lines that describe the content of a collapsed module."""
        inside = self._parts.get(node.name, ())
        red = sum(each.name in self._red for each in inside)
        facts = [f"{len(inside):,} ops"] if len(inside) > 1 else []
        facts += [weights_text(node.inputs)] if inside else []
        holds = [plural(red, "placeholder")] if 0 < red < len(inside) else []
        return *filter(None, [", ".join(filter(None, facts))]), *holds

    def _add_folded_edges(self, node: OpNode, box_id: str) -> None:
        """Add one edge for all repetitions of a layer; labels show only what the box above does not."""
        for tensor, count in Counter(map(self._folding.drawn, dict.fromkeys(node.inputs))).items():
            self._connect(tensor, box_id, " ".join([quantized_shape(tensor)] * bool(tensor.index) + [*_times(count)]))

    def _connect(self, tensor: TensorMeta, target: str, label: str) -> None:
        """Add an edge from the producer of a tensor; a weight gets its box at its first use."""
        tensor = self._folding.drawn(tensor)
        is_weight = tensor.param is not None
        if is_weight and not self.include_weights:
            return
        if is_weight and tensor not in self._producers:
            tip = f"weight {tensor.key}: {tensor.dtype} {shape_text(tensor)}"
            self.add_box("w_", tensor.name, (tensor.name, quantized_shape(tensor)), "weight", [tensor], tip=tip)
        if tensor in self._producers:
            self.items.append(Edge(self._producers[tensor], target, label, "dotted" if is_weight else "solid"))

    def _fresh_id(self, prefix: str, name: str) -> str:
        """Return an id that every format accepts; names that differ only in special characters get a number."""
        base = found = prefix + re.sub(r"[^A-Za-z0-9_]", "_", name)
        number = 2
        while found in self._ids:
            found, number = f"{base}__{number}", number + 1
        self._ids.add(found)
        return found


def _represented(folding: Folding, parts: Parts) -> dict[OpNode, list[OpNode]]:
    """Map each drawn node to the nodes that it represents: its repetitions, and the nodes inside a module."""
    found: dict[OpNode, list[OpNode]] = {}
    for node in folding.ir.nodes:
        drawn = folding.drawn(node.outputs[0]).producer if node.outputs else None
        found.setdefault(drawn or node, []).extend(parts.get(node.name, (node,)))
    return found


def _dead_ends(ir: IR) -> set[OpNode]:
    """Return the nodes whose results lead to nothing that the graph returns or changes."""
    dead: set[OpNode] = set()
    for node in reversed(ir.nodes):
        if node.outputs and all(user in dead for tensor in node.outputs for user in tensor._uses):
            dead.add(node)
    return dead


def _path(node: OpNode, fold: Fold | None) -> tuple[str, ...]:
    """Return the path of a module relative to its frame; nothing for an operator."""
    if not node.is_call:
        return ()
    path = node.origin.module[len(fold.module if fold else "") :].removeprefix(".")
    return (path,) if path else ()


def _times(count: int) -> tuple[str, ...]:
    return (times(count),) if count > 1 else ()
