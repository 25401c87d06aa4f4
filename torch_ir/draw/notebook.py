"""HTML of a graph for notebooks: a summary, its operators, and a readable drawing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from functools import partial

from torch_ir.draw.elements import Scene
from torch_ir.draw.mermaid import to_mermaid
from torch_ir.draw.node_texts import parameters_in, short_name
from torch_ir.draw.picture_files import drawn
from torch_ir.draw.scene import build_scene
from torch_ir.draw.view_options import legible
from torch_ir.errors import TorchIRError
from torch_ir.escaping import in_html
from torch_ir.ir import IR, TensorMeta
from torch_ir.ir.regroup.repeated_blocks import has_blocks
from torch_ir.ir.text.amounts import parameters_text
from torch_ir.ir.text.printer import shape_text

_SHOWN_OPS, _SHOWN_TENSORS = 8, 6
_MOST_BOXES = 60
_PATIENCE = 20  # seconds; a cell must not hang
_LEFT = 'style="text-align:left;vertical-align:top;padding:2px 12px 2px 0"'


def to_html(ir: IR) -> str:
    """Return the summary and drawing of a graph, or its Mermaid text without Graphviz; never raises."""
    try:
        return "\n".join(["<div>", *_summary(ir), *_picture(ir), "</div>"])
    except Exception:  # an invalid graph must still be shown, instead of a traceback
        return f"<pre>{in_html(repr(ir))}</pre>"


def _summary(ir: IR) -> Iterator[str]:
    counts = Counter(map(short_name, ir.nodes)).most_common()
    rest = sum(count for _, count in counts[_SHOWN_OPS:])
    ops = [f"{name} {count}" for name, count in counts[:_SHOWN_OPS]] + ([f"others {rest}"] if rest else [])
    rows = {
        "nodes": [str(len(ir.nodes))],
        "parameters": [parameters_text(parameters_in(ir.params)).split(" parameter")[0]],
        "inputs": _tensors(ir.graph_inputs),
        "outputs": _tensors(ir.graph_outputs),
        "operators": [" · ".join(ops)],
    }
    yield f"<b>{in_html(ir.model_name or 'IR')}</b>"
    yield "<table>"
    for title, lines in rows.items():
        yield f"<tr><th {_LEFT}>{title}</th><td {_LEFT}>{'<br>'.join(map(in_html, lines))}</td></tr>"
    yield "</table>"


def _tensors(tensors: Iterable[TensorMeta]) -> list[str]:
    lines = [f"{tensor.name}: {tensor.dtype} {shape_text(tensor)}" for tensor in tensors]
    more = [f"… {len(lines) - _SHOWN_TENSORS} more"] if len(lines) > _SHOWN_TENSORS else []
    return lines[:_SHOWN_TENSORS] + more


def _picture(ir: IR) -> Iterator[str]:
    scene, message = legible([ir], partial(build_scene, ir, open_calls=has_blocks(ir)), most_boxes=_MOST_BOXES)
    if message:
        yield f"<small>{in_html(message)}</small>"
    if len(scene.boxes) <= _MOST_BOXES and (svg := _svg(scene)):
        yield f'<div style="overflow:auto;max-width:100%;max-height:900px">{svg}</div>'
    else:
        yield f"<details><summary>Mermaid</summary><pre>{in_html(to_mermaid(scene))}</pre></details>"


def _svg(scene: Scene) -> str:
    """Return the SVG element only, no wider than its cell; empty if Graphviz is missing or takes too long."""
    try:
        text = drawn(scene, "svg", patience=_PATIENCE).decode()
    except TorchIRError:
        return ""
    return text[text.index("<svg") :].replace("<svg", '<svg style="max-width:100%;height:auto"', 1)
