"""A valid document with every part of the format, and ways to corrupt it."""

import copy
import json
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from tests.graphs import tensor, weight
from tests.hostile_files.case import Make
from tests.refusals import without_digest
from torch_ir.ir import IR, FunctionRef, OpNode, Origin, Param, Symbol, TensorData, TensorMeta

Document = dict[str, Any]
NAME = "model.json"


def graph() -> IR:
    """A layer, a function, a constant, changing state, a dynamic size, and an unused node."""
    x, made, added, called = tensor("x", "batch", 4), *(tensor(name, "batch", 8) for name in ("linear", "add", "call"))
    w, b = weight("p_fc_weight", 8, 4, keys=("fc.weight",)), weight("p_fc_bias", 8, keys=("fc.bias",))
    state = weight("b_state", 8, keys=("state",), kind="buffer")
    steps = TensorMeta("c_steps", (8,), "float32", param=Param(("steps",), "constant", _steps()))
    moved, unread = tensor("mul", 8), tensor("neg", "batch", 4)
    nodes = [
        OpNode("linear", "aten.linear.default", [x, w, b], [made], args=["input", "weight", "bias"],
               origin=Origin("fc", 0, "Linear", "model.py:3")),
        OpNode("add", "aten.add.Tensor", [made, steps], [added], {"alpha": 1}, args=["self", "other"]),
        OpNode("call", "call", [added], [called], {"function": FunctionRef("body")}, args=["value"]),
        OpNode("mul", "aten.mul.Tensor", [state, steps], [moved], args=["self", "other"]),
        OpNode("neg", "aten.neg.default", [x], [unread], args=["self"]),
    ]  # fmt: skip
    value, relu = tensor("value", "batch", 8), tensor("relu", "batch", 8)
    body = IR([OpNode("relu", "aten.relu.default", [value], [relu], args=["self"])], [value], [relu])
    return IR(
        nodes,
        [x],
        [called],
        params=[w, b, state, steps],
        mutations=[(state, moved)],
        functions={"body": body},
        symbols=[Symbol("batch", 1, 64, x, 0)],
        constraints=["batch % 2 == 0"],
        model_name="Net",
        pytorch_version="2.13.0",
        modules={"": "model.Net", "fc": "torch.nn.modules.linear.Linear"},
        extensions={"tool": {"kept": [1, None]}},
    ).check()


def _steps() -> TensorData:
    return TensorData((8,), "float32", bytes(32))


@cache
def valid_text() -> str:
    """The valid document as text, without a digest."""
    return without_digest(graph().to_json())


def document() -> Document:
    """The valid document, to be spoiled."""
    found: Document = json.loads(valid_text())
    return found


def written(content: str | bytes | Document, name: str = NAME) -> Make:
    """A file with this content."""

    def make(folder: Path) -> Path:
        file = folder / name
        text = json.dumps(content, ensure_ascii=False) if isinstance(content, dict) else content
        file.write_bytes(text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text)
        return file

    return make


def edited(edit: Callable[[Document], Any]) -> Make:
    """The document after an edit."""

    def make(folder: Path) -> Path:
        found = document()
        edit(found)
        return written(found)(folder)

    return make


def replaced(old: str, new: str) -> Make:
    """The document's text, with one piece of it replaced."""
    assert old in valid_text(), old
    return written(valid_text().replace(old, new, 1))


def changed(path: str, value: Any) -> Make:
    """Return the document with `value` at a path such as `nodes[0].attrs.dim`; a function gets the old value."""
    return edited(lambda found: _put(found, path, value))


def without(path: str) -> Make:
    """The document with a key less."""

    def take(found: Document) -> None:
        place, last = _place(found, path)
        del place[last]

    return edited(take)


def _put(found: Document, path: str, value: Any) -> None:
    place, last = _place(found, path)
    if isinstance(place, list) and last == len(place):
        place.append(value)
    else:
        place[last] = value(copy.deepcopy(place[last])) if callable(value) else value


def _place(found: Document, path: str) -> tuple[Any, Any]:
    *outer, last = [int(part) if part.isdigit() else part for part in re.findall(r"[^.\[\]]+", path)]
    place: Any = found
    for part in outer:
        place = place[part]
    return place, last


def flat(nodes: list[Document], inputs: list[Document], outputs: list[Document], **more: Any) -> Document:
    """A document with these nodes and no weights."""
    return {
        "format": "torch-ir", "version": 1, "model_name": "Net", "graph_inputs": inputs, "graph_outputs": outputs,
        "weights": [], "weight_name_mapping": {}, "nodes": nodes, **more,
    }  # fmt: skip


def typed(name: str, *shape: int | str, dtype: str = "float32") -> Document:
    """A tensor's record."""
    return {"name": name, "shape": list(shape), "dtype": dtype}


def read(name: str, *shape: int | str, dtype: str = "float32", by: str = "", index: int = 0) -> Document:
    """A tensor's record at its reader."""
    return {**typed(name, *shape, dtype=dtype), "producer_node": by or name, "producer_output_idx": index}


def node(
    name: str, op_type: str, inputs: list[Document], outputs: list[Document], args: list[str], /, **attrs: Any
) -> Document:
    """A node's record."""
    return {"name": name, "op_type": op_type, "inputs": inputs, "outputs": outputs, "attrs": attrs, "args": args}


def one_node(op_type: str, /, *shape: int | str, reads: tuple[str, ...] = ("self",), **attrs: Any) -> Make:
    """A graph of one node that reads `x` once for each argument."""
    inputs = [read("x", *shape) for _ in reads]
    made = node("made", op_type, inputs, [typed("made", *shape)], list(reads), **attrs)
    return written(flat([made], [typed("x", *shape)], [typed("made", *shape)]))
