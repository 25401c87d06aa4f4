"""Seconds of the nodes that one rank runs, on a device in a network."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from torch_ir.analysis import Roofline
from torch_ir.analysis.cost_model.experts import is_grouped
from torch_ir.analysis.cost_model.links import Link, Network
from torch_ir.analysis.cost_model.node_costs import Counting, NodeCost
from torch_ir.analysis.cost_model.routing import EXPECTED
from torch_ir.analysis.cost_model.times import Clock, hidden_seconds
from torch_ir.analysis.cost_model.traffic import bytes_of
from torch_ir.analysis.shapes.size_polynomials import weight_of
from torch_ir.analysis.values.node_memo import once_per_form
from torch_ir.errors import PlanError
from torch_ir.ir import OpNode, TensorMeta
from torch_ir.ir.sizes.specialize import substitute
from torch_ir.pipeline.stage_report import TYPICAL

_LINK, _BETWEEN, _PER_NODE = Link(100e9, 5e-6), Link(25e9, 10e-6), 8
_MOST_DEVICES = 1 << 16


@dataclass(frozen=True)
class Cluster:
    """Equal devices in equal nodes; `memory` is in bytes of one device."""

    devices: int
    memory: float
    device: Roofline = TYPICAL
    link: Link = _LINK  # within a node
    between: Link = _BETWEEN  # between nodes
    per_node: int = _PER_NODE

    def __post_init__(self) -> None:
        for name, least, most in (
            ("devices", 1, _MOST_DEVICES),
            ("memory", 1, 1 << 62),
            ("per_node", 1, _MOST_DEVICES),
        ):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, (int, float) if name == "memory" else int):
                raise PlanError(f"{name} must be a number, not {value!r:.40}")
            if not least <= value <= most:
                raise PlanError(f"{name} must be from {least} to {most}, not {value!r:.40}")

    @property
    def network(self) -> Network:
        """The links within and between nodes."""
        return Network(self.link, self.between, self.per_node)


@dataclass
class Prices:
    """Prices nodes of a mesh; sizes that are not given count as 1024."""

    cluster: Cluster
    mesh: Mapping[str, int]
    sizes: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._counting = Counting(self.mesh, EXPECTED)
        self._clock = Clock(self.cluster.device, self.cluster.network, self.mesh)
        self._operator = once_per_form(self._of_node)

    def seconds(self, nodes: Iterable[OpNode]) -> float:
        """Return the time of consecutive nodes."""
        rows = [(node, self._of_node(node) if is_grouped(node) else self._operator(node)) for node in nodes]
        return sum(seconds for _, seconds in rows) - hidden_seconds(rows)

    def _of_node(self, node: OpNode) -> float:
        amounts = self._counting.node(node, {}).amounts()
        if self.sizes:
            amounts = tuple(substitute(amount, self.sizes) for amount in amounts)
        return self._clock.node(NodeCost(*amounts, node=node), {}).seconds

    def bytes(self, tensor: TensorMeta) -> float:
        """Return the size of a tensor."""
        return weight_of(substitute(bytes_of(tensor), self.sizes))
