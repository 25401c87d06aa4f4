"""The result of lowering: layers in program order, and the work list of missing operators."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from torch_ir.analysis import cost, split_prologue
from torch_ir.formats import is_protobuf, lowered_to_protobuf
from torch_ir.ir import IR, OpNode, TensorMeta
from torch_ir.ir.files.atomic_write import write_bytes
from torch_ir.ir.text.amounts import plural
from torch_ir.ir.text.printer import shape_text
from torch_ir.targets.attr_values import to_json
from torch_ir.targets.work_list import WorkItem, data_tensors, table_of, work_items

NO_LOWERING = "no lowering"


@dataclass(frozen=True)
class Placeholder:
    """Marks a node that no handler lowered, with the reasons."""

    node: OpNode
    why: tuple[str, ...]


@dataclass(frozen=True)
class Layer:
    """One layer of the target: the handler's result, and the names of its tensors and weights."""

    name: str
    kind: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    weights: dict[str, str]
    value: Any
    about: str = field(default="", compare=False)

    @property
    def is_placeholder(self) -> bool:
        """Whether no handler lowered the node."""
        return type(self.value) is Placeholder

    def to_dict(self, path: str = "layer") -> dict[str, Any]:
        """Return the layer as plain JSON values; `path` names it in errors."""
        record: dict[str, Any] = {
            "name": self.name,
            "kind": self.kind,
            "inputs": list(self.inputs),
            "outputs": list(self.outputs),
            "weights": self.weights,
        }
        if type(self.value) is Placeholder:
            return {**record, "placeholder": list(self.value.why)}
        return {**record, "value": to_json(self.value, f"{path} {self.name!r} ({self.kind})")}


@dataclass
class Missing:
    """A missing operator at certain shapes, where it occurs, and why it was not lowered."""

    op_type: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    nodes: list[str] = field(default_factory=list)
    modules: list[str] = field(default_factory=list)
    sources: list[str] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)

    @property
    def count(self) -> int:
        return len(self.nodes)

    def to_dict(self) -> dict[str, Any]:
        return {**vars(self), "inputs": list(self.inputs), "outputs": list(self.outputs), "count": self.count}

    def __str__(self) -> str:
        times = f" x{self.count}" if self.count > 1 else ""
        shapes = f"{' '.join(self.inputs)} -> {' '.join(self.outputs)}".strip()
        return f"{self.op_type}  {shapes}{times}  ({'; '.join(self.reasons)})"


@dataclass(frozen=True)
class Lowered:
    """A graph as layers of a target; `ir` is the lowered graph, with one or more nodes per layer."""

    target: str
    ir: IR
    layers: list[Layer]

    def __iter__(self) -> Iterator[Layer]:
        return iter(self.layers)

    def __len__(self) -> int:
        return len(self.layers)

    @property
    def is_complete(self) -> bool:
        """Whether no layer is a placeholder."""
        return not any(layer.is_placeholder for layer in self.layers)

    @property
    def placeholders(self) -> list[str]:
        """The nodes of `ir` without a lowering, for `render(lowered.ir, path, placeholders=...)`."""
        return [layer.name for layer in self.layers if layer.is_placeholder]

    @property
    def missing(self) -> list[Missing]:
        """The missing operators as the file lists them: one row per operator and shapes, in program order."""
        rows: dict[tuple[Any, ...], Missing] = {}
        seen: set[tuple[int, str]] = set()  # texts of each list

        def add(texts: list[str], text: str) -> None:
            if text and (id(texts), text) not in seen:
                seen.add((id(texts), text))
                texts.append(text)

        for layer in self.layers:
            if type(layer.value) is not Placeholder:
                continue
            node = layer.value.node
            given, made = (tuple(map(shape_text, side)) for side in data_tensors(node))
            row = rows.setdefault((node.op_type, given, made), Missing(node.op_type, given, made))
            row.nodes.append(node.name)
            add(row.modules, node.origin.module)
            add(row.sources, node.origin.source)
            for reason in layer.value.why:
                add(row.reasons, reason)
        return list(rows.values())

    @property
    def work_list(self) -> list[WorkItem]:
        """The work list: one row per missing operator with its share of FLOPs and bytes, most work first.

        Nodes that depend on weights alone are not in it: the host computes them once; see `computed_once`.
        """
        left = [layer.value for layer in self.layers if type(layer.value) is Placeholder]
        return work_items([(each.node, each.why) for each in left], cost(self.ir), self.ir.modules) if left else []

    @property
    def computed_once(self) -> list[str]:
        """The placeholders that depend on weights alone: they run once, on the host, when weights are bound."""
        left = set(self.placeholders)
        return [node.name for node in split_prologue(self.ir)[0] if node.name in left] if left else []

    def report(self, width: int | None = None) -> str:
        """Return a summary of lowered and missing layers, with a table of at most this width."""
        left, once = len(self.placeholders), len(self.computed_once)
        layers = len(self.layers) - once
        note = [f"{plural(once, 'more layer')} over weights alone: computed once, on the host."] if once else []
        if left == once:
            return "\n".join([f"{self.target}: all {layers} layers are lowered.", *note])
        lines = [
            f"{self.target}: {len(self.layers) - left} of {layers} layers are lowered.",
            f"The following ops are not supported by {self.target} yet:",
            *(f"  {line}" for line in table_of(self.work_list, width and width - 2)),
            "They are placeholders, red in the picture.",
            *note,
        ]
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        """Return the layers as plain JSON values; a SerializationError names a layer with an unsupported value."""
        return {
            "target": self.target,
            "model_name": self.ir.model_name,
            "inputs": [tensor.to_dict() for tensor in self.ir.graph_inputs],
            "outputs": [tensor.name for tensor in self.ir.graph_outputs],
            "weights": {tensor.key: {"shape": list(tensor.shape), "dtype": tensor.dtype} for tensor in self.ir.params},
            "mutations": [[self._target(target), value.name] for target, value in self.ir.mutations],
            "layers": [layer.to_dict() for layer in self.layers],
            "missing": [row.to_dict() for row in self.missing],
        }

    def _target(self, tensor: TensorMeta) -> str:
        """Return the key of a weight, by which `weights` and layers know it, or the name of an input."""
        inputs = {one.name for one in self.ir.graph_inputs}
        return tensor.key if tensor.key and tensor.key not in inputs else tensor.name

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the layers atomically as protobuf (.pb, .binpb) or else as JSON with a line per layer."""
        document = self.to_dict()
        write_bytes(path, lowered_to_protobuf(document) if is_protobuf(path) else _text(document).encode())

    def __repr__(self) -> str:
        left = len(self.placeholders)
        return f"Lowered(target={self.target!r}, layers={len(self.layers)}, placeholders={left})"


def _text(document: dict[str, Any]) -> str:
    body = ",\n".join(f'"{key}": {_entry(value)}' for key, value in document.items())
    return f"{{\n{body}\n}}\n"


def _entry(value: Any) -> str:
    """Return a value as JSON; a list of records has a line for each."""
    if isinstance(value, list) and value and isinstance(value[0], dict):
        return "[\n" + ",\n".join(json.dumps(item, ensure_ascii=False) for item in value) + "\n]"
    return json.dumps(value, ensure_ascii=False)
