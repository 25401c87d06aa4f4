"""Upper bound of a run's memory from the sizes that an untrusted file declares.

    demand = Demand(ir)
    demand.bound(sizes)          # quick: as if nothing were ever freed
    demand.peak(sizes)           # Peak(bytes=…, node=…): tensors are freed after their last use

`liveness` computes what a graph needs; this computes what it could need: declared strides are not trusted, and
operators that may copy count as copies. Data-dependent sizes are unknown before a run, and do not count.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import NamedTuple

from torch_ir.analysis.cost_model.traffic import VIEWS, bytes_of, span_of
from torch_ir.analysis.shapes.size_polynomials import product, total, weight_of
from torch_ir.ir import IR, Device, OpNode, TensorMeta, evaluate
from torch_ir.ir.graph.attr_types import DTYPES
from torch_ir.ir.graph.operator_sets import base_name
from torch_ir.ir.json.json_fields import Dim
from torch_ir.ir.regroup.functions import called_by
from torch_ir.ir.sizes.expressions import Number, names_in

Sizes = Mapping[str, Number]
_STRIDED = frozenset(("aten.empty_strided", "aten.new_empty_strided"))
_KEEP_GAPS = frozenset(
    f"aten.{name}" for name in ("copy", "slice_scatter", "select_scatter", "diagonal_scatter", "as_strided_scatter")
)


class Peak(NamedTuple):
    """The peak memory in bytes, and the node that needs the most of it."""

    bytes: int
    node: OpNode | None


class Demand:
    """The memory demand of one graph; with `streamed`, weights are held from their first use to their last."""

    def __init__(self, ir: IR, *, streamed: bool = False) -> None:
        self._ir = ir
        self._streamed = streamed
        self._spans = _spans(ir.nodes)
        called = [name for name in called_by(ir.nodes) if name in ir.functions]
        self._bodies = {name: Demand(ir.functions[name]) for name in called}

    def bound(self, sizes: Sizes) -> int:
        """Return the bytes of all inputs, weights and outputs of nodes."""
        return sum(_number(amount, sizes) for names, amount in self._amounts.items() if sizes.keys() >= names)

    @cached_property
    def _amounts(self) -> dict[frozenset[str], Dim]:
        """The bytes of everything, by the open sizes that they depend on."""
        found: dict[frozenset[str], list[Dim]] = {}
        for size in self._everything():
            found.setdefault(frozenset(names_in(size)), []).append(size)
        return {names: total(sizes) for names, sizes in found.items()}

    def _everything(self) -> Iterator[Dim]:
        yield from map(bytes_of, [*self._ir.graph_inputs, *self._ir.params])
        for node in self._ir.nodes:
            yield from map(self._size, _made(node))
            for name in called_by([node]):
                yield from self._bodies[name]._amounts.values() if name in self._bodies else ()

    def peak(self, sizes: Sizes) -> Peak:
        """Return the peak memory if every tensor is freed after its last use."""
        inside = {name: body.peak(sizes).bytes for name, body in self._bodies.items()}
        begins, ends = self._lives()
        held = _sum(map(bytes_of, [*self._ir.graph_inputs, *(() if self._streamed else self._ir.params)]), sizes)
        peak, largest, where = held, -1, None
        for node, born, dead in zip(self._ir.nodes, begins, ends, strict=True):
            needs = max((inside.get(name, 0) for name in called_by([node])), default=0) + _sum(
                map(self._size, born), sizes
            )
            peak = max(peak, held + needs)
            held += _sum(map(self._size, born), sizes) - _sum(map(self._size, dead), sizes)
            if needs > largest:
                largest, where = needs, node
        return Peak(peak, where)

    def _size(self, tensor: TensorMeta) -> Dim:
        return self._spans.get(tensor) or product(DTYPES[tensor.dtype], *tensor.shape)

    def _lives(self) -> tuple[list[list[TensorMeta]], list[list[TensorMeta]]]:
        """For each node, list the tensors allocated at it, and those freed after it."""
        nodes = self._ir.nodes
        last = _last_uses(nodes, self._ir.returns.inputs)
        begins = [_made(node) for node in nodes]
        if self._streamed:
            first = {param: index for index, node in reversed(list(enumerate(nodes))) for param in node.inputs}
            for param in self._ir.params:
                if param in first:
                    begins[first[param]].append(param)
        ends: list[list[TensorMeta]] = [[] for _ in nodes]
        for tensor in (tensor for born in begins for tensor in born):
            if last[tensor] < len(nodes):
                ends[last[tensor]].append(tensor)
        return begins, ends


def _last_uses(nodes: Sequence[OpNode], returned: Iterable[TensorMeta]) -> dict[TensorMeta, int]:
    """Map each tensor to the position of the node after which it can be freed; a view keeps its base alive."""
    last = dict.fromkeys(returned, len(nodes))
    for index in range(len(nodes) - 1, -1, -1):
        node = nodes[index]
        end = max((last.setdefault(tensor, index) for tensor in node.outputs), default=index)
        for tensor in node.inputs:
            last[tensor] = max(last.get(tensor, index), end if _is_view(node) else index)
    return last


def _made(node: OpNode) -> list[TensorMeta]:
    """Return the outputs with storage of their own; those on meta have none."""
    return [] if _is_view(node) or node.attrs.get("device") == Device("meta") else list(node.outputs)


def _is_view(node: OpNode) -> bool:
    return base_name(node.op_type) in VIEWS and bool(node.inputs)


def _spans(nodes: Iterable[OpNode]) -> dict[TensorMeta, Dim]:
    """Return the bytes of tensors with gaps between their elements, which only `empty_strided` makes and few keep."""
    found: dict[TensorMeta, Dim] = {}
    for node in nodes:
        size, stride = node.attrs.get("size"), node.attrs.get("stride")
        if base_name(node.op_type) in _STRIDED and isinstance(size, list) and isinstance(stride, list):
            found.update(
                (made, span_of(TensorMeta(made.name, size, made.dtype, stride=stride))) for made in node.outputs
            )
        elif _is_view(node) or base_name(node.op_type) in _KEEP_GAPS:
            widest = max((found[tensor] for tensor in node.inputs if tensor in found), key=weight_of, default=None)
            found.update((made, widest) for made in node.outputs if widest is not None)
    return found


def _sum(sizes: Iterable[Dim], known: Sizes) -> int:
    return sum(_number(size, known) for size in sizes if known.keys() >= set(names_in(size)))


def _number(size: Dim, known: Sizes) -> int:
    return int(evaluate(size, known))
