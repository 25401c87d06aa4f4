"""Times of nodes on a device: the sum over the nodes that run, so that a call takes as long as its body inline.

A collective runs beside the nodes between it and its `wait_tensor`, one collective at a time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from torch_ir.analysis.cost_model.links import Network
from torch_ir.analysis.cost_model.node_costs import COND, Cost, NodeCost, bodies_of, is_fused, rounds
from torch_ir.analysis.cost_model.roofline import Roofline
from torch_ir.analysis.shapes.size_polynomials import weight_of
from torch_ir.ir import OpNode, TensorMeta
from torch_ir.ir.checks.mesh_check import COLLECTIVE

_WAIT = "_c10d_functional.wait_tensor"


class Times(NamedTuple):
    """Seconds of compute-bound and of memory-bound nodes, and of collectives if the network is known.

    `dispatching` is the time in which a calibrated device starts operators; `host` is that of a device that computes
    beside it, so that the longer of both counts.
    """

    computing: float = 0.0
    moving: float = 0.0
    sending: float = 0.0
    dispatching: float = 0.0
    host: float = 0.0

    @property
    def seconds(self) -> float:
        return max(self.computing + self.moving + self.sending + self.dispatching, self.host)

    @property
    def bound(self) -> str:
        """The limit that takes most of the time; time between devices counts as neither."""
        dispatch = max(self.dispatching, self.host if self.host >= self.seconds else 0.0)
        if dispatch > max(self.computing, self.moving):
            return "dispatch"
        return "compute" if self.computing > self.moving else "memory"


class Clock:
    """The times of nodes on a device, with open sizes as 1024; each function is timed once.

    With a network, a collective of a mesh takes as long as its messages; without one, it only moves memory.
    """

    def __init__(self, device: Roofline, network: Network | None = None, mesh: Mapping[str, int] | None = None) -> None:
        self.device, self._network, self._mesh = device, network, mesh or {}
        self._bodies: dict[int, tuple[Cost, Times]] = {}  # by identity; the cost is kept, so that its id stays its own

    def graph(self, costs: Cost) -> Times:
        """Return the time of all nodes, one after the other except where collectives overlap with others."""
        times = [self.node(row, costs.functions) for row in costs.nodes]
        whole = added_times(times)
        if self._network is None:
            return whole
        hidden = hidden_seconds((row.node, each.seconds) for row, each in zip(costs.nodes, times, strict=True))
        return whole._replace(sending=whole.sending - hidden)

    def node(self, row: NodeCost, functions: Mapping[str, Cost]) -> Times:
        """Return the time of a node: of a `cond`, the slower branch; of a loop, every known iteration."""
        bodies = [functions[name] for name in bodies_of(row.node) if name in functions]
        if is_fused(row.node) or not bodies:
            return self._operator(row, bodies)
        times = list(map(self._body, bodies))
        if row.node.op_type == COND:
            return max(times, key=lambda each: each.seconds)
        count = weight_of(rounds(row.node))
        whole = added_times(times)
        return Times(*(count * each for each in whole))

    def _operator(self, row: NodeCost, bodies: list[Cost]) -> Times:
        """Return the time of an operator; the collectives inside a fused one take as long as outside."""
        seconds = self.device.seconds(row, [each for body in bodies for each in body.nodes])
        sending = sum(self._body(each).sending for each in bodies)
        if self._network is not None and row.communication and not bodies:
            sent = self._network.seconds(row.node, weight_of(row.communication), self._mesh)
            return Times(sending=max(seconds, sent))
        is_computing = self.device.is_compute_bound(row)
        dispatch = self.device.dispatch_seconds(row)
        return Times(
            seconds if is_computing else 0.0,
            0.0 if is_computing else seconds,
            sending,
            *((0.0, dispatch) if self.device.is_asynchronous else (dispatch, 0.0)),
        )

    def _body(self, costs: Cost) -> Times:
        if id(costs) not in self._bodies:
            self._bodies[id(costs)] = costs, self.graph(costs)
        return self._bodies[id(costs)][1]


def hidden_seconds(rows: Iterable[tuple[OpNode, float]]) -> float:
    """Return the part of the time of collectives in which other nodes run, given nodes in order with their seconds."""
    total = now = sent = 0.0
    ready: dict[TensorMeta, float] = {}
    for node, seconds in rows:
        total += seconds
        if not node.op_type.startswith(COLLECTIVE):
            now += seconds
        elif node.op_type.startswith(_WAIT):
            now = max(now, ready.get(node.inputs[0], now)) + seconds
        else:
            sent = max(now, sent) + seconds
            ready.update(dict.fromkeys(node.outputs, sent))
    return total - max(now, sent)


def added_times(times: Sequence[Times]) -> Times:
    """Return the sum of times."""
    return Times(*map(sum, zip(*times, strict=True))) if times else Times()
