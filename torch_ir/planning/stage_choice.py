"""Pipeline stages of a layout: where to cut, how long they take, and whether they fit into memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from torch_ir.analysis.cost_model.links import Link, Network
from torch_ir.pipeline.stage_bounds import Load
from torch_ir.pipeline.stage_cuts import Partition


@dataclass(frozen=True)
class Unit:
    """Consecutive nodes that stay in one stage: a layer, or what is before, between or after layers."""

    name: str  # the module or node that it begins with
    seconds: float
    bytes: float  # of weights and inputs


@dataclass(frozen=True)
class Stages:
    """A cut: the units that stages begin with, the seconds and bytes of each, and the time of sends between them."""

    starts: tuple[int, ...]
    seconds: tuple[float, ...]
    bytes: tuple[float, ...]
    hops: float

    @property
    def latency(self) -> float:
        """The time of one run through all stages."""
        return sum(self.seconds) + self.hops

    @property
    def interval(self) -> float:
        """The time between two runs while all stages are busy."""
        return max(self.seconds) + self.hops / max(1, len(self.starts) - 1)


def stages_of(
    units: Sequence[Unit], count: int, room: float, network: Network, stride: int, sent: float
) -> Stages | None:
    """Return the best cut into `count` stages of at most `room` bytes; None if there is none.

    Neighbouring stages are `stride` devices apart, and each rank sends `sent` bytes to the next stage.
    """
    if count > len(units):
        return None
    loads = [Load(unit.seconds, weights={number: unit.bytes}) for number, unit in enumerate(units)]
    partition = Partition(loads, room)
    if not 0 < partition.fewest() <= count:
        return None
    starts = partition.starts(count, partition.slowest(count))
    if not starts:
        return None
    parts = [units[start:end] for start, end in pairwise((*starts, len(units)))]
    return Stages(
        starts,
        tuple(sum(unit.seconds for unit in part) for part in parts),
        tuple(sum(unit.bytes for unit in part) for part in parts),
        sum(_hop(network, stage, stride).seconds(sent) for stage in range(count - 1)),
    )


def _hop(network: Network, stage: int, stride: int) -> Link:
    """Return the slowest link from a stage to the next one."""
    links = [network.hop(stage * stride + rank, (stage + 1) * stride + rank) for rank in range(stride)]
    return max(links, key=lambda link: link.seconds(1.0))
