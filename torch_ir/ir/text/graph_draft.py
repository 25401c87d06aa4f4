"""Draft of a graph while the text form is parsed, with the line number of each part."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from torch_ir.errors import GraphError, SerializationError, suggestion
from torch_ir.ir.graph.io_tree import Branch, Tree
from torch_ir.ir.graph.node import OpNode
from torch_ir.ir.graph.tensor import TensorMeta
from torch_ir.ir.sizes.symbols import Symbol
from torch_ir.ir.text.line_cursor import Cursor, place

if TYPE_CHECKING:
    from torch_ir.ir.graph.graph import IR

_SAME = (  # parts with the name of an argument of IR
    "params", "mutations", "symbols", "constraints", "input_tree", "output_tree", "model_name", "device", "mesh",
    "fixed_layout", "extensions",
)  # fmt: skip
_PART = re.compile(r"\$\.((?:nodes|constraints|mutations)\[\d+\]|symbols\.\w+|graph_outputs|output_tree|input_tree)")


@dataclass
class Draft:
    """A graph or function being parsed; `lines` maps parts of its document to line numbers."""

    path: tuple[str, ...]
    number: int
    model_name: str = ""
    inputs: list[TensorMeta] = field(default_factory=list)
    params: list[TensorMeta] = field(default_factory=list)
    nodes: list[OpNode] = field(default_factory=list)
    outputs: list[TensorMeta] = field(default_factory=list)
    mutations: list[tuple[TensorMeta, TensorMeta]] = field(default_factory=list)
    symbols: list[Symbol] = field(default_factory=list)
    constraints: list[str] = field(default_factory=list)
    mesh: dict[str, int] = field(default_factory=dict)
    extensions: dict[str, Any] = field(default_factory=dict)
    device: str = "cpu"
    fixed_layout: str = ""
    input_tree: Branch | None = None
    output_tree: Tree = None
    tensors: dict[str, TensorMeta] = field(default_factory=dict)
    bindings: list[tuple[Symbol, str, Cursor, int]] = field(default_factory=list)
    uses: list[tuple[str, Cursor, int]] = field(default_factory=list)
    lines: dict[str, int] = field(default_factory=dict)

    def define(self, tensor: TensorMeta, cursor: Cursor, at: int) -> None:
        if tensor.name in self.tensors:
            raise cursor.error(f"two tensors are called {tensor.name!r:.80}", at, rule="R8")
        self.tensors[tensor.name] = tensor

    def find(self, name: str, cursor: Cursor, at: int) -> TensorMeta:
        if name not in self.tensors:
            hint = suggestion(name, self.tensors)
            raise cursor.error(f"no line above defines the tensor {name!r:.80}", at, rule="R8", hint=hint)
        return self.tensors[name]

    def build(self, cls: type[IR], functions: Mapping[str, IR]) -> IR:
        return cls(
            self.nodes,
            self.inputs,
            self.outputs,
            functions=functions,
            **{name: getattr(self, name) for name in _SAME},
        )


def located(error: GraphError, drafts: Mapping[tuple[str, ...], Draft], path: tuple[str, ...]) -> SerializationError:
    """Convert an error about the graph to one about its text: the JSON path becomes a line number."""
    rest = error.path
    while inner := next((one for one in drafts if one[:-1] == path and _is_in(rest, one)), ()):
        path, rest = inner, f"${rest[len(_opening(inner)) :]}"
    found = _PART.match(rest)
    draft = drafts[path]
    number = draft.lines.get(found[1], draft.number) if found else draft.number
    again = SerializationError(str(error.args[0]), place(number, 0), rule=error.rule, node=error.node)
    again.hint = error.hint  # already at the end of the message
    return again


def _opening(path: tuple[str, ...]) -> str:
    """Return the JSON path prefix of errors about a function."""
    return f"$.functions.{path[-1]:.200}"


def _is_in(path: str, function: tuple[str, ...]) -> bool:
    opening = _opening(function) if function else ""
    return bool(opening) and path.startswith(opening) and path[len(opening) :][:1] in ("", ".", "[")
