"""A calibrated device: the measured times of operators, from which those of a graph are predicted.

    time of a node  =  dispatch of its family  +  kernel at its sizes

The kernel's time is interpolated on the grid of its family and dtype; so efficiency depends on sizes, and small tensors
are as fast as the caches make them. A fused kernel takes as long as one pointwise operator over what it reads and
writes, and what its members take beyond a pointwise operator, such as the exponentials of a softmax. On a GPU,
operators start while others compute, and the longer of both counts. Operators of no family, or of one without a grid,
take what the roofline of the best measured figures says.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

from torch_ir.analysis.cost_model.node_costs import NodeCost, Work, is_fused
from torch_ir.analysis.cost_model.roofline import Roofline
from torch_ir.analysis.devices.operator_families import (
    BY_BYTES,
    CONTRACTIONS,
    IN_COMPILED,
    POINTWISE,
    VIEW,
    Point,
    point_of,
)
from torch_ir.analysis.devices.time_grid import Grid
from torch_ir.analysis.shapes.size_polynomials import weight_of

EAGER, EXECUTOR, COMPILED = MODES = ("eager", "executor", "compiled")
CPU, CUDA = KINDS = ("cpu", "cuda")
COLD, WARM = PLACES = ("memory", "cache")  # where weights are read from
_NEAREST_DTYPE = {"bfloat16": "float32", "float32": "bfloat16"}
_NEAREST_FAMILY = {"broadcast_mask_attention": "masked_attention"}  # for devices that were measured without it


class GridKey(NamedTuple):
    """A family, a dtype, and where its weights are read from."""

    family: str
    dtype: str
    weights: str = COLD


@dataclass(frozen=True)
class Overheads:
    """Seconds that do not depend on sizes: of calling a module, of a node beyond its dispatch, and of a whole run."""

    module: float = 0.0
    eager_node: float = 0.0
    executor_node: float = 0.0
    compiled_node: float = 0.0
    eager_run: float = 0.0
    executor_run: float = 0.0
    compiled_run: float = 0.0

    def of_node(self, mode: str) -> float:
        return {EAGER: self.eager_node, EXECUTOR: self.executor_node, COMPILED: self.compiled_node}[mode]

    def of_run(self, mode: str) -> float:
        return {EAGER: self.eager_run, EXECUTOR: self.executor_run, COMPILED: self.compiled_run}[mode]


@dataclass(frozen=True)
class Calibration(Roofline):
    """A device with measured times; `peak` and `bandwidth` are the best that were measured.

    `mode` and `weights` say how a graph runs and where its weights are read from.
    """

    name: str
    kind: str
    threads: int
    torch: str
    cache: float  # bytes of the last level
    grids: Mapping[GridKey, Grid]
    dispatch: Mapping[str, Mapping[str, float]]  # by dtype and family
    overheads: Overheads = field(default_factory=Overheads)
    mode: str = EXECUTOR
    weights: str = COLD

    @property
    def is_asynchronous(self) -> bool:
        return self.kind == CUDA

    def dispatch_seconds(self, work: Work) -> float:
        """Return how long an operator takes to start; a compiled graph of a GPU starts at once."""
        if not isinstance(work, NodeCost) or (self.mode == COMPILED and self.is_asynchronous):
            return 0.0
        family, dtype = (POINTWISE, "float32") if is_fused(work.node) else self._family(work)
        if self.mode == COMPILED:
            family = POINTWISE if family in BY_BYTES and family != VIEW else family
            return 0.0 if family == VIEW else self._started(family, dtype) + self.overheads.compiled_node
        return self._started(family, dtype) + self.overheads.of_node(self.mode)

    def _started(self, family: str, dtype: str) -> float:
        known = self.dispatch.get(dtype) or self.dispatch.get(_NEAREST_DTYPE.get(dtype, "float32")) or {}
        family = family if family in known else _NEAREST_FAMILY.get(family, POINTWISE)
        return known.get(family, 0.0)

    def seconds(self, work: Work, inside: Sequence[Work] = ()) -> float:
        """Return the time of the kernel of a node, with open sizes as 1024."""
        if not isinstance(work, NodeCost):
            return super().seconds(work)
        if inside and is_fused(work.node):
            moved = self._kernel(Point(POINTWISE, _dtype(inside), (weight_of(work.bytes),)))
            return moved + sum(map(self._beyond_pointwise, inside))
        point = point_of(work)
        return super().seconds(work) if point is None or not self._is_measured(point) else self._kernel(point)

    def _beyond_pointwise(self, work: Work) -> float:
        """Return by how much the kernel of a node takes longer than a pointwise operator that moves as much."""
        point = point_of(work) if isinstance(work, NodeCost) else None
        if point is not None and point.family in (VIEW, POINTWISE):
            return 0.0
        if point is None or not self._is_measured(point):
            return super().seconds(work)
        pointwise = Point(POINTWISE, point.dtype, (weight_of(work.bytes),))
        return max(0.0, self._kernel(point) - self._kernel(pointwise))

    def _family(self, work: NodeCost) -> tuple[str, str]:
        point = point_of(work)
        return ("matmul", "float32") if point is None else (point.family, point.dtype)

    def _is_measured(self, point: Point) -> bool:
        return point.family == VIEW or self._grid(point) is not None

    def _kernel(self, point: Point) -> float:
        if point.family == VIEW or not point.sizes[0]:
            return 0.0
        if point not in self._known:
            grid = self._grid(point)
            self._known[point] = 0.0 if grid is None else grid.at(point.sizes)
        return self._known[point]

    def _grid(self, point: Point) -> Grid | None:
        """Return the grid of a point, or that of the nearest dtype or family."""
        nearest = _NEAREST_FAMILY.get(point.family, point.family if point.family in CONTRACTIONS else POINTWISE)
        families: tuple[str, ...] = (point.family, nearest)
        if self.mode == COMPILED:
            families = (f"{IN_COMPILED}{point.family}", *families)
        for family in families:
            for dtype in (point.dtype, _NEAREST_DTYPE.get(point.dtype, "float32")):
                for weights in (self.weights, COLD):
                    found = self.grids.get(GridKey(family, dtype, weights))
                    if found is not None:
                        return found
        return None

    @cached_property
    def _known(self) -> dict[Point, float]:
        return {}


def _dtype(inside: Sequence[Work]) -> str:
    found = (point_of(work) for work in inside if isinstance(work, NodeCost))
    return next((point.dtype for point in found if point is not None), "float32")
