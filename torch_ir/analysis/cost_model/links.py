"""Time of collectives: latency and bandwidth of the links within a node and between nodes.

    network = Network(Link.parse("450GB/s,2us"), Link.parse("50GB/s,10us"), per_node=8)
    network.seconds(all_reduce, 1 << 20, {"dp": 2, "tp": 8})

A step that sends b bytes takes `latency + b / bandwidth`. Collectives are rings, in two levels if their ranks are on
several nodes: one ring in each node, and one ring between the nodes for each rank in a node. An all_to_all is not a
ring: a rank sends to all others directly, first to those in other nodes and then to those in its own, all messages at
once. In a broadcast, every rank passes on what it gets while it gets it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass

from torch_ir.errors import DeviceError
from torch_ir.ir import OpNode
from torch_ir.ir.graph.operator_sets import base_name

_PREFIXES = {"": 1.0, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
_SMALL = {"": 1.0, "m": 1e-3, "u": 1e-6, "µ": 1e-6, "n": 1e-9}
_NUMBER = r"(\d{1,18}(?:\.\d{1,9})?)"
_LINK = re.compile(rf"{_NUMBER} ?([KMGT]?)B?(?:/s)? ?, ?{_NUMBER} ?([muµn]?)s?", re.ASCII)
_CHAIN = "_c10d_functional.broadcast"
_DIRECT = "_c10d_functional.all_to_all_single"
_TWO_PASSES = "_c10d_functional.all_reduce"  # a reduce_scatter, then an all_gather


@dataclass(frozen=True)
class Link:
    """Bytes per second that a device sends, and seconds before the first byte arrives."""

    bandwidth: float
    latency: float

    def __post_init__(self) -> None:
        if not (math.isfinite(self.bandwidth) and self.bandwidth > 0):
            raise DeviceError(f"the bandwidth of a link must be more than 0, and finite, not {self.bandwidth:g}")
        if not (math.isfinite(self.latency) and self.latency >= 0):
            raise DeviceError(f"the latency of a link must be at least 0, and finite, not {self.latency:g}")

    @classmethod
    def parse(cls, text: str) -> Link:
        """Parse `450GB/s,2us`; without units, bytes per second and seconds."""
        found = _LINK.fullmatch(text.strip())
        if found is None:
            raise DeviceError(f"invalid link {text!r:.60}; write its bandwidth and latency as 450GB/s,2us")
        return cls(float(found[1]) * _PREFIXES[found[2]], float(found[3]) * _SMALL[found[4]])

    def seconds(self, amount: float) -> float:
        """Return the time to send so many bytes in one message."""
        return self.latency + amount / self.bandwidth


@dataclass(frozen=True)
class Network:
    """The links of equal nodes: devices are numbered node by node, and the last mesh axis varies fastest."""

    within: Link
    between: Link
    per_node: int

    def __post_init__(self) -> None:
        if self.per_node < 1:
            raise DeviceError(f"a node has at least 1 device, not {self.per_node}")

    def seconds(self, node: OpNode, sent: float, mesh: Mapping[str, int]) -> float:
        """Return the time of a collective for which every rank of a mesh sends so many bytes."""
        axis, name = node.attrs["group_name"], base_name(node.op_type)
        passes = 2 if name == _TWO_PASSES else 1
        ranks = mesh[axis]
        if name == _CHAIN:
            return self.chain(ranks, _stride(mesh, axis), sent * ranks / (ranks - 1))
        if name == _DIRECT:
            return self.direct(ranks, _stride(mesh, axis), sent / (ranks - 1))
        return passes * self.ring(ranks, _stride(mesh, axis), sent / passes / (ranks - 1))

    def ring(self, ranks: int, stride: int, piece: float) -> float:
        """Return the time in which every rank gets a piece of every other; neighbours are `stride` devices apart."""
        inside = self._inside(ranks, stride)
        nodes = ranks // inside
        return (nodes - 1) * self.between.seconds(piece) + (inside - 1) * self.within.seconds(piece * nodes)

    def direct(self, ranks: int, stride: int, piece: float) -> float:
        """Return the time in which every rank sends a different piece to every other."""
        inside = self._inside(ranks, stride)
        counts = ((self.between, ranks - inside), (self.within, inside - 1))
        return sum(link.seconds(count * piece) for link, count in counts if count)

    def chain(self, ranks: int, stride: int, whole: float) -> float:
        """Return the time in which a tensor goes from one rank to all others, through each of them."""
        nodes = ranks // self._inside(ranks, stride)
        counts = ((self.between, nodes - 1), (self.within, ranks - nodes))
        hops = [(link, count) for link, count in counts if count]
        slowest = max((whole / link.bandwidth for link, _ in hops), default=0.0)
        return sum(count * link.latency for link, count in hops) + slowest

    def _inside(self, ranks: int, stride: int) -> int:
        """Return how many of the ranks are in one node."""
        inside = min(ranks, max(1, self.per_node // stride))
        return 1 if ranks % inside else inside

    def hop(self, first: int, second: int) -> Link:
        """Return the link between two devices."""
        return self.within if first // self.per_node == second // self.per_node else self.between


def _stride(mesh: Mapping[str, int], axis: str) -> int:
    """Return how many devices apart neighbours along an axis are."""
    names = list(mesh)
    return math.prod(mesh[name] for name in names[names.index(axis) + 1 :])
