"""Pair each value of a graph with the operator call of the original model that computes it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from difflib import SequenceMatcher
from typing import Any

from torch import nn

from torch_ir.ir import IR, TensorMeta
from torch_ir.ops.torch_types import TORCH_DTYPES
from torch_ir.verify.operator_log import Call, Place


def counterparts(ir: IR, model: nn.Module, calls: Sequence[Call]) -> dict[TensorMeta, Place]:
    """Pair values of the graph with results of the original, aligned by operator and module in program order.

    Values are not compared, so a wrong value is still paired with the right one. Where operators differ, a run of calls
    is paired only if it has the same length on both sides. Paired values agree in shape and dtype.
    """
    nodes = [node for node in ir.nodes if node.outputs]
    places = [index for index, call in enumerate(calls) if call.results]
    homes = _homes(model)
    is_located = any(node.origin.module for node in nodes)  # files of the documented format have no modules
    shared = {path for path, count in Counter(homes.values()).items() if count > 1}

    def key(op_type: str, path: str, number: int, kind: Any) -> Any:
        """Return what must be equal; calls of a module with several paths are counted per path, so they are ignored."""
        home = homes.get(path, path) if is_located else ""
        return _plain(op_type), home, number if is_located and home not in shared else 0, kind if ir.is_static else None

    ours = [key(node.op_type, node.origin.module, node.origin.call, _declared(node.outputs[0])) for node in nodes]
    theirs = [key(call.op_type, call.module, call.number, call.results[0]) for call in map(calls.__getitem__, places)]
    pairs: dict[TensorMeta, Place] = {}
    for tag, start, stop, first, last in SequenceMatcher(None, ours, theirs, autojunk=False).get_opcodes():
        if tag != "equal" and stop - start != last - first:
            continue
        for node, index in zip(nodes[start:stop], places[first:last], strict=True):
            for place, (tensor, kind) in enumerate(zip(node.outputs, calls[index].results, strict=False)):
                if not tensor.is_static or _declared(tensor) == kind:
                    pairs[tensor] = (index, place)
    return pairs


def argument_counterparts(
    ir: IR, pairs: Mapping[TensorMeta, Place], calls: Sequence[Call]
) -> dict[TensorMeta, list[Place]]:
    """Pair values without a counterpart with the arguments that the original reads there, as after in-place writes."""
    found: dict[TensorMeta, list[Place]] = {}
    for node in ir.nodes:
        index = next((pairs[tensor][0] for tensor in node.outputs if tensor in pairs), None)
        if index is None or _plain(node.op_type) != _plain(calls[index].op_type):
            continue
        for name, tensor in zip(node.args, node.inputs, strict=True):
            if tensor.producer is not None and tensor not in pairs and name.count(".") < 2:
                found.setdefault(tensor, []).append((index, name))
    return found


def _homes(model: nn.Module) -> dict[str, str]:
    """Map every path of a module to its first path; a shared module has several."""
    first = {module: path for path, module in model.named_modules()}
    return {path: first[module] for path, module in model.named_modules(remove_duplicate=False)}


def _plain(op_type: str) -> str:
    """Return the operator without overload and without the in-place suffix, which captured graphs never have."""
    namespace, _, rest = op_type.partition(".")
    name = rest.partition(".")[0]
    return f"{namespace}.{name if name.endswith('__') else name.removesuffix('_')}"


def _declared(tensor: TensorMeta) -> tuple[Any, ...]:
    return tensor.shape, TORCH_DTYPES[tensor.dtype]
