"""Texts about nodes: short names for boxes, long descriptions for tooltips."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence

from torch_ir.ir import OpNode, TensorMeta
from torch_ir.ir.graph.attr_types import DTYPES
from torch_ir.ir.regroup.functions import STAGE
from torch_ir.ir.text.amounts import human, parameters_text
from torch_ir.ir.text.printer import shape_text

DECISION = "torch_ir.decision."  # prefix of the op_types of guards
LINE = "source_line."  # prefix of the op_types of nodes from one source line, drawn as one box
OPAQUE = "opaque."  # prefix of the op_types of gaps
_SHOWN = 6  # items of a list


def short_name(node: OpNode) -> str:
    """Return `linear` for `aten.linear.default`, `Conv2d` for `torch.nn.Conv2d`, and the name of a pipeline stage."""
    if node.op_type == STAGE:
        return node.name
    if node.op_type.startswith(LINE):
        return node.op_type.removeprefix(LINE)
    if node.is_call:
        return node.op_type.rpartition(".")[2]
    return node.op_type.removeprefix("aten.").removesuffix(".default")


def span(first: str, last: str) -> str:
    """Return the names of the first and the last module of a series, joined by a dash: `layer1.0` and `1.2`."""
    number = re.search(r"\d[\d.]*$", last)
    return first if first == last else f"{first}\N{EN DASH}{number[0] if number else last.rpartition('.')[2]}"


def parameters_in(tensors: Iterable[TensorMeta]) -> int:
    """Return the number of elements of the parameters among tensors, if their sizes are static."""
    found = {tensor for tensor in tensors if tensor.param and tensor.param.is_learnt}
    return sum(math.prod(_sizes(tensor)) for tensor in found if tensor.is_static)


def is_quantized(tensor: TensorMeta) -> bool:
    """Whether a tensor has a dtype of at most eight bits, other than bool, in which quantised values are stored."""
    return tensor.dtype.startswith("float8") or tensor.dtype in ("int8", "uint8", "int4", "uint4")


def quantized_shape(tensor: TensorMeta) -> str:
    """Return the shape of a tensor, after its dtype if that is a quantised one."""
    return f"{tensor.dtype} {shape_text(tensor)}" if is_quantized(tensor) else shape_text(tensor)


def weights_text(tensors: Iterable[TensorMeta]) -> str:
    """Describe the weights among tensors: `25.6 M parameters`, or, if some are quantised, `65.8 MB in uint8`."""
    weights = {tensor for tensor in tensors if tensor.param and tensor.is_static}
    if dtypes := sorted({tensor.dtype for tensor in weights if is_quantized(tensor)}):
        size = sum(DTYPES[tensor.dtype] * math.prod(_sizes(tensor)) for tensor in weights)
        return f"{human(size, 'B')} in {' and '.join(dtypes)}"
    parameters = parameters_in(weights)
    return parameters_text(parameters) if parameters else ""


def facts_of(node: OpNode, inside: Sequence[OpNode]) -> str:
    """Describe a node, one fact per line: operator, module, source line, inputs and outputs."""
    counts = Counter(map(short_name, inside)).most_common()
    origin = node.origin
    again = f", call {origin.call + 1}" if origin.call else ""
    place = f"{origin.module}{again}{f' ({origin.module_class})' if origin.module_class else ''}"
    lines = {
        "": f"{node.name}: {node.op_type}",
        "module ": place if origin.module else "",
        "source ": origin.source,
        "contains ": _listed([f"{count} {name}" for name, count in counts]),
        "reads ": _listed([_typed(tensor) for tensor in node.inputs if tensor.param is None]),
        "weights ": _listed([_typed(tensor) for tensor in node.inputs if tensor.param is not None]),
        "returns ": _listed([*map(_typed, node.outputs)]),
    }
    return "\n".join(f"{word}{text}" for word, text in lines.items() if text)


def _listed(items: Sequence[str]) -> str:
    more = [f"and {len(items) - _SHOWN} more"] if len(items) > _SHOWN else []
    return ", ".join([*items[:_SHOWN], *more])


def _typed(tensor: TensorMeta) -> str:
    return f"{tensor.name} {tensor.dtype} {shape_text(tensor)}"


def _sizes(tensor: TensorMeta) -> list[int]:
    return [size for size in tensor.shape if isinstance(size, int)]
