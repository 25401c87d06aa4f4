"""Nodes of an execution trace: the work of a graph that runs on one rank, and what each node waits for.

Calls are opened. Views and other nodes that move nothing are left out; what depends on them depends on what they read.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from torch_ir.analysis import Roofline, cost
from torch_ir.analysis.cost_model.node_costs import NodeCost
from torch_ir.analysis.cost_model.traffic import bytes_of
from torch_ir.analysis.shapes.size_polynomials import total
from torch_ir.errors import GraphError
from torch_ir.ir import IR, TensorMeta
from torch_ir.ir.graph.operator_sets import base_name
from torch_ir.ir.json.json_fields import Dim
from torch_ir.ir.regroup.functions import FUSED, inline_all
from torch_ir.ir.sizes.expressions import names_in
from torch_ir.ir.sizes.specialize import substitute

COMPUTE, SEND, RECEIVE, COLLECTIVE = "COMP_NODE", "COMM_SEND_NODE", "COMM_RECV_NODE", "COMM_COLL_NODE"
# operator -> Chakra's number of the collective
_COLLECTIVES = {
    "_c10d_functional.all_reduce": 0,
    "_c10d_functional.all_gather_into_tensor": 2,
    "_c10d_functional.broadcast": 5,
    "_c10d_functional.all_to_all_single": 6,
    "_c10d_functional.reduce_scatter_tensor": 7,
}
_LARGEST = (1 << 63) - 1  # number in a trace
_MOST_WAITED_FOR = 1000  # nodes by a node without work


@dataclass(frozen=True)
class Message:
    """A tensor that this rank sends to a rank, or receives from it; `tag` is equal on both sides."""

    tensor: TensorMeta
    rank: int
    tag: int


@dataclass(frozen=True)
class TraceNode:
    """A node of a trace; `micros` is its estimated time, 0 if unknown."""

    name: str
    kind: str
    waits_for: tuple[int, ...]  # positions in the trace
    attrs: Mapping[str, int | str]
    micros: int = 0


def trace_nodes(
    ir: IR,
    sizes: Mapping[str, int],
    device: Roofline | None,
    *,
    rank: int = 0,
    receives: Iterable[Message] = (),
    sends: Iterable[Message] = (),
) -> list[TraceNode]:
    """Return the nodes of a graph in the order in which they run: receives, work and collectives, sends."""
    flat = ir.clone()
    inline_all(flat, lambda call: not call.op_type.startswith(FUSED))
    trace = _Trace(sizes, device)
    for message in receives:
        ends = {"comm_src": message.rank, "comm_dst": rank, "comm_tag": message.tag}
        trace.add(message.tensor.name, RECEIVE, (), ends | {"comm_size": trace.bytes(message.tensor)}, [message.tensor])
    for row in cost(flat, {name: size for name, size in sizes.items() if name in flat.symbols}).per_run.nodes:
        trace.add_work(row)
    for message in sends:
        ends = {"comm_src": rank, "comm_dst": message.rank, "comm_tag": message.tag}
        size = {"comm_size": trace.bytes(message.tensor)}
        trace.add(f"send_{message.tensor.name}", SEND, [message.tensor], ends | size, ())
    return trace.nodes


class _Trace:
    """The nodes so far, and those that each tensor waits for, by its name."""

    def __init__(self, sizes: Mapping[str, int], device: Roofline | None) -> None:
        self.nodes: list[TraceNode] = []
        self._sizes = sizes
        self._device = device
        self._makers: dict[str, tuple[int, ...]] = {}

    def add_work(self, row: NodeCost) -> None:
        node = row.node
        kind = _COLLECTIVES.get(base_name(node.op_type))
        if kind is not None:
            if "group_name" not in node.attrs or not node.inputs:
                raise GraphError(f"{node.name!r:.80} names no process group, so it has no trace")
            attrs: dict[str, int | str] = {
                "comm_type": kind,
                "comm_size": self.bytes(*node.inputs),
                "pg_name": str(node.attrs["group_name"]),
            }
            self.add(node.name, COLLECTIVE, node.inputs, attrs, node.outputs)
        elif row.bytes == 0 and row.flops == 0 and len(waits_for := self._waits_for(node.inputs)) <= _MOST_WAITED_FOR:
            self._makers.update((tensor.name, waits_for) for tensor in node.outputs)
        else:
            flops, moved = self._number(row.flops, node.name), self._number(row.bytes, node.name)
            attrs = {"num_ops": flops, "tensor_size": moved, "op_type": node.op_type}
            seconds = 0.0 if self._device is None else self._device.seconds(row)
            micros = self._number(math.ceil(max(seconds * 1e6, self._device is not None)), node.name)
            self.add(node.name, COMPUTE, node.inputs, attrs, node.outputs, micros)

    def add(
        self,
        name: str,
        kind: str,
        reads: Iterable[TensorMeta],
        attrs: Mapping[str, int | str],
        makes: Iterable[TensorMeta],
        micros: int = 0,
    ) -> None:
        self._makers.update((tensor.name, (len(self.nodes),)) for tensor in makes)
        self.nodes.append(TraceNode(name, kind, self._waits_for(reads), attrs, micros))

    def _waits_for(self, tensors: Iterable[TensorMeta]) -> tuple[int, ...]:
        return tuple(sorted({at for tensor in tensors for at in self._makers.get(tensor.name, ())}))

    def bytes(self, *tensors: TensorMeta) -> int:
        return self._number(total(map(bytes_of, tensors)), tensors[0].name)

    def _number(self, amount: Dim, name: str) -> int:
        found = substitute(amount, self._sizes)
        if isinstance(found, int):
            if found > _LARGEST:
                raise GraphError(f"the work of {name!r:.80} is {found}, more than the 2**63 - 1 of a trace")
            return found
        open_sizes = ", ".join(sorted(set(names_in(found))))
        raise GraphError(f"the work of {name!r:.80} depends on {open_sizes}; a trace needs numbers (sizes=, or --dim)")
