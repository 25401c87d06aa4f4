"""`recompute`: trade activations for computation, so that a training graph stays within a limit of memory.

    before   forward keeps what backward reads of every layer
    after    of the first n layers, forward keeps the inputs, and backward computes the rest again

The layers are the repeated modules of the model (`layers.0`, `layers.1`, ...). The smallest n that fits is chosen: the
first layers are those whose activations wait longest. Random results, such as dropout masks, are always kept.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from torch_ir.analysis import cost, liveness
from torch_ir.errors import GraphError, did_you_mean
from torch_ir.ir import IR, OpNode, TensorMeta
from torch_ir.ir.graph.free_names import Names, fresh
from torch_ir.ir.graph.given_graph import require_graph
from torch_ir.ir.graph.origins import call_around, modules_around
from torch_ir.ir.graph.training_parts import BACKWARD
from torch_ir.ops.effects import is_pure, is_random
from torch_ir.ops.schema import find_operator
from torch_ir.training.training_entries import part_of

_Layer = tuple[str, int]  # module path and number of the call


@dataclass(frozen=True)
class RecomputeReport:
    """Which layers are computed again, and what that costs; peaks are bytes of activations, by `liveness`."""

    layers: tuple[str, ...]
    peak_before: int
    peak_after: int
    flops_before: int
    flops_after: int

    def __str__(self) -> str:
        more = 100 * (self.flops_after / self.flops_before - 1) if self.flops_before else 0.0
        return (
            f"{len(self.layers)} layers are computed again: peak {self.peak_before:,} -> {self.peak_after:,} bytes, "
            f"{more:.1f} % more FLOPs"
        )


def recompute(ir: IR, limit: int, *, keep: Collection[str] = ()) -> tuple[IR, RecomputeReport]:
    """Return a copy of a training graph whose activations take at most `limit` bytes, and a report.

    `keep` lists operators whose results are kept, such as `aten.mm.default`, if they are cheaper to hold than to
    compute. The results of the graph are bit-equal. Its other entry points are left as they are.
    """
    require_graph(ir, "recompute")
    _check_operators(keep, ir)
    layers = _layers(ir)
    if not layers:
        raise GraphError(
            "the graph has no repeated layers that backward reads; capture it with extract_training and blocks='inline'"
        )
    before = _peak(ir)
    low, high = 0, len(layers)  # the smallest number that fits is in [low, high], if any
    if before > limit and (least := _peak(_recomputed(ir, layers, keep))) > limit:
        raise GraphError(
            f"the activations take {before:,} bytes, and {least:,} with every layer computed again, more than {limit:,}"
        )
    while low < high:
        middle = (low + high) // 2
        fits = (before if not middle else _peak(_recomputed(ir, layers[:middle], keep))) <= limit
        low, high = (low, middle) if fits else (middle + 1, high)
    changed = _recomputed(ir, layers[:low], keep).check()
    names = tuple(path for path, _ in layers[:low])
    return changed, RecomputeReport(names, before, _peak(changed), _flops(ir), _flops(changed))


def _check_operators(keep: Collection[str], ir: IR) -> None:
    """Raise GraphError for a name in `keep` that neither the graph nor torch knows."""
    if isinstance(keep, str):
        raise GraphError(f"keep takes a list of operators; write keep=[{keep!r:.80}]")
    own = {node.op_type for node in ir.nodes}
    for name in keep:
        if name not in own and find_operator(name) is None:
            raise GraphError(f"keep: unknown operator {name!r:.80}{did_you_mean(name, own)}")


def _peak(ir: IR) -> int:
    return int(liveness(ir).peak)


def _flops(ir: IR) -> int:
    return int(cost(ir).flops)


def _layers(ir: IR) -> list[_Layer]:
    """Return the calls of repeated modules in forward whose results backward reads, in order."""
    found: dict[_Layer, None] = {}
    for node in ir.nodes:
        layer = _layer(node)
        if layer is not None and not part_of(node) and any(map(_is_read_later, node.outputs)):
            found[layer] = None
    return list(found)


def _layer(node: OpNode) -> _Layer | None:
    """Return the outermost numbered module that a node belongs to, without the part of the step."""
    module = node.origin.module
    path = next((path for path in modules_around(module)[1:] if path.rpartition(".")[2].isdecimal()), None)
    return None if path is None else (path, call_around(node.origin, path).call)


def _is_read_later(tensor: TensorMeta) -> bool:
    return any(part_of(reader) for reader in tensor.consumers)


def _recomputed(ir: IR, layers: Sequence[_Layer], keep: Collection[str]) -> IR:
    """Return a copy in which backward computes these layers again."""
    ir = ir.clone()
    chosen: dict[_Layer, list[OpNode]] = {layer: [] for layer in layers}
    for node in ir.nodes:
        if not part_of(node) and (layer := _layer(node)) in chosen:
            chosen[layer].append(node)
    position = {node: at for at, node in enumerate(ir.nodes)}
    names = _Names(ir)
    inserted: dict[int, list[OpNode]] = {}
    for nodes in chosen.values():
        again, place = _again(nodes, position, keep, names)
        inserted.setdefault(place, []).extend(again)
    ir.nodes = [each for at, node in enumerate(ir.nodes) for each in (*inserted.get(at, ()), node)]
    ir.modules |= {f"{BACKWARD}.{path}": ir.modules[path] for path in _paths(inserted) if path in ir.modules}
    return ir


def _paths(inserted: dict[int, list[OpNode]]) -> set[str]:
    """Return the modules of inserted nodes, by their paths in forward."""
    return {node.origin.module.partition(".")[2] for nodes in inserted.values() for node in nodes}


class _Names:
    """The names that are taken in a graph."""

    def __init__(self, ir: IR) -> None:
        self.nodes = Names(node.name for node in ir.nodes)
        self.tensors = Names(tensor.name for tensor in ir.tensors())


def _again(
    nodes: Sequence[OpNode], position: dict[OpNode, int], keep: Collection[str], names: _Names
) -> tuple[list[OpNode], int]:
    """Return copies of what backward needs of a layer, and where they belong; readers in backward read the copies."""
    inside = set(nodes)
    dropped = {
        tensor
        for node in nodes
        if is_pure(node) and not is_random(node) and node.op_type not in keep
        for tensor in node.outputs
        if all(reader in inside or part_of(reader) for reader in tensor.consumers)
    }
    wanted = {tensor for tensor in dropped if _is_read_later(tensor)}
    readers = [reader for tensor in wanted for reader in tensor.consumers if part_of(reader)]
    needed: list[OpNode] = []
    for node in reversed(nodes):
        if not wanted.isdisjoint(node.outputs):
            needed.append(node)
            wanted.update(tensor for tensor in node.inputs if tensor in dropped)
    copies: dict[TensorMeta, TensorMeta] = {}
    again = []
    for node in reversed(needed):
        for tensor in node.outputs:
            copies[tensor] = tensor.copy(fresh(f"{tensor.name}_again", names.tensors))
        copy = node.copy(lambda tensor: copies.get(tensor, tensor), fresh(f"{node.name}_again", names.nodes))
        copy.origin = node.origin._replace(module=f"{BACKWARD}.{node.origin.module}")
        copy.origins = node.origins
        again.append(copy)
    for reader in dict.fromkeys(readers):
        reader.inputs = tuple(copies.get(tensor, tensor) for tensor in reader.inputs)
    return again, min((position[reader] for reader in readers if reader in position), default=len(position))
