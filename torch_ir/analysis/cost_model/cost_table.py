"""Cost report of a graph: a row for every module, operator or node, totals, memory, and time on a device.

report = cost_report(ir, by="op", sizes={"batch": 8}, device=Roofline.parse("peak=312TFLOPs,bw=2.0TB/s"))
report.rows, report.total, report.memory.peak
print(report)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from torch_ir.analysis.cost_model.experts import is_grouped
from torch_ir.analysis.cost_model.node_costs import check_sizes, cost, sized
from torch_ir.analysis.cost_model.roofline import Roofline
from torch_ir.analysis.cost_model.routing import CASES, LOWER, UPPER, DataSize, data_sizes
from torch_ir.analysis.cost_model.table_rows import (
    Leaf,
    Row,
    fold_layers,
    leaves_of,
    most_first,
    parameters,
    row_of,
    rows_by_module,
    rows_of,
    weights_behind,
)
from torch_ir.analysis.cost_model.times import Clock
from torch_ir.analysis.cost_model.traffic import bytes_of
from torch_ir.analysis.devices.calibration import EXECUTOR, Calibration
from torch_ir.analysis.devices.run_modes import RunTime, as_run, check_mode, device_for, part_of_run, run_times
from torch_ir.analysis.memory.kv_cache_report import KvCache, kv_cache
from torch_ir.analysis.memory.live_tensors import Liveness, liveness
from torch_ir.analysis.shapes.size_polynomials import total
from torch_ir.errors import GraphError
from torch_ir.ir import IR
from torch_ir.ir.graph.given_graph import require_graph
from torch_ir.ir.json.json_fields import Dim
from torch_ir.ir.regroup.functions import check_size_inline

GROUPINGS = ("module", "op", "node")
_SIZE_CHECK = "aten._assert_scalar.default"
_MOST_TIMED = 50_000  # nodes with calls inlined, unless the file has more than a tenth of that


@dataclass(frozen=True)
class CostReport:
    """Cost of one run of a graph; `once` is what depends on weights alone and is computed when they are bound.

    With open sizes, amounts are expressions; order, shares, intensities and times assume 1024 for each. Where the data
    decides how much work there is, all amounts are those to expect; `lower` and `upper` are the bounds of the total.
    """

    model_name: str
    by: str
    rows: tuple[Row, ...]
    total: Row
    once: Row
    collectives: tuple[Row, ...]  # of a sharded graph, by operator
    weight_bytes: Dim
    memory: Liveness
    cache: KvCache
    unknown: tuple[str, ...]
    sizes: Mapping[str, int]
    open_sizes: tuple[str, ...]
    device: Roofline | None
    data_sizes: Mapping[str, DataSize]  # sizes that the data decides, as assumed
    lower: Row | None  # None if the data decides nothing
    upper: Row | None
    mode: str = field(default="", kw_only=True)  # how the graph runs on a calibrated device
    run_times: Mapping[str, RunTime] = field(default_factory=dict, kw_only=True)  # by mode, on a calibrated device

    def to_dict(self) -> dict[str, Any]:
        """Return the report for `json.dumps`."""
        at = self.memory.at
        return {
            "model_name": self.model_name,
            "sizes": dict(self.sizes),
            "open_sizes": list(self.open_sizes),
            "device": self.device and {"peak": self.device.peak, "bandwidth": self.device.bandwidth},
            **self._modes(),
            "by": self.by,
            "rows": [self._record(row) for row in self.rows],
            "total": self._record(self.total),
            "once": self._record(self.once),
            **({"collectives": [self._record(row) for row in self.collectives]} if self.collectives else {}),
            "weight_bytes": self.weight_bytes,
            "memory": {
                "peak": self.memory.peak,
                "at": at and at.node.name,
                "alive": [tensor.name for tensor in self.memory.alive(at)] if at else [],
                "inputs": self.memory.inputs,
                "once": self.memory.once,
                "weights_read": self.memory.read,
            },
            "kv_cache": {"bytes_given": self.cache.bytes_given, "bytes_left": self.cache.bytes_left},
            "unknown": list(self.unknown),
            **self._bounds(),
        }

    def _modes(self) -> dict[str, Any]:
        """Return the times by mode; empty unless the device is calibrated."""
        if not self.run_times:
            return {}
        return {"mode": self.mode, "modes": {mode: each.to_dict() for mode, each in self.run_times.items()}}

    def _bounds(self) -> dict[str, Any]:
        """Return the bounds of what the data decides; empty if it decides nothing."""
        if self.lower is None or self.upper is None:
            return {}
        rows = zip(CASES, (self.lower, self.total, self.upper), strict=True)
        sizes = {name: size._asdict() for name, size in self.data_sizes.items()}
        return {"data_dependent": {**{case: self._record(row) for case, row in rows}, "sizes": sizes}}

    def _record(self, row: Row) -> dict[str, Any]:
        return {**row.to_dict(), **({"seconds": row.seconds, "bound": row.bound} if self.device else {})}

    def text(self, width: int | None = None) -> str:
        """Format the report as a table of at most this width."""
        from torch_ir.analysis.cost_model.table_text import as_text

        return as_text(self, width)

    def __str__(self) -> str:
        return self.text()


def cost_report(
    ir: IR,
    by: str = "module",
    *,
    depth: int | None = None,
    top: int | None = None,
    sizes: Mapping[str, int] | None = None,
    device: Roofline | None = None,
    mode: str = EXECUTOR,
    fold: bool = True,
) -> CostReport:
    """Return the cost of a graph by module, operator or node, largest first; rows after `top` are merged.

    With `depth`, deeper modules are merged into their parent. With `fold`, modules of equal layers are one row, such as
    `model.layers.*.mlp`. The nodes inside a call are counted; with by="node", the row is the whole call.

    On a calibrated device, rows are those of a run in a `mode`: "eager", "executor" or "compiled". Calls are inlined
    then, and in compiled mode, a fused kernel is one node.
    """
    require_graph(ir, "cost_report")
    if by not in GROUPINGS:
        raise GraphError(f"unknown grouping {by!r:.60}; expected one of {', '.join(GROUPINGS)}")
    check_mode(mode)
    check_size_inline(ir)
    check_sizes(ir, sizes or {})
    by_mode: dict[str, RunTime] = {}
    given = ir
    if isinstance(device, Calibration):
        check_size_inline(ir, _MOST_TIMED)
        given = as_run(ir, EXECUTOR)
        ir, device = as_run(given, mode), device_for(ir, device, mode)
    assumed = data_sizes(sized(ir, sizes or {}), sizes or {})
    if assumed:
        ir = _without_size_checks(ir)
    chosen = {**{name: size.expected for name, size in assumed.items()}, **(sizes or {})}
    costs = cost(ir, chosen)
    if isinstance(device, Calibration):
        by_mode = run_times(given, device, chosen)
    every = part_of_run(costs, mode) if by_mode else costs.per_run
    carried = weights_behind(ir.params, (row.node for row in costs.once.nodes))
    clock = Clock(device) if device else None
    leaves = list(leaves_of(every, carried, clock))
    if by == "module":
        rows = rows_by_module(leaves, ir.params, depth)
        rows = fold_layers(rows) if fold else rows
    else:
        rows = rows_of(leaves, _operator if by == "op" else lambda leaf: leaf.top)
    graph = sized(ir, chosen)
    whole = replace(row_of("total", leaves), params=parameters(ir.params))
    is_open = bool(assumed) or any(map(is_grouped, ir.all_nodes()))
    bounds = (
        [_total_in(case, ir, assumed, sizes or {}, clock) for case in (LOWER, UPPER)] if is_open else [whole, whole]
    )
    is_certain = all(row.work.amounts() == whole.work.amounts() for row in bounds)
    return CostReport(
        ir.model_name,
        by,
        tuple(most_first(rows, top)),
        whole,
        row_of("once", [] if every is costs else list(leaves_of(costs.once, carried, clock))),
        tuple(most_first(rows_of((leaf for leaf in leaves if leaf.work.communication), _operator), None)),
        total(map(bytes_of, ir.params)),
        liveness(ir, chosen),
        kv_cache(graph),
        costs.unknown,
        dict(sizes or {}),
        tuple(graph.symbols),
        device,
        assumed,
        *(None if is_certain else row for row in bounds),
        mode=mode if by_mode else "",
        run_times=by_mode,
    )


def _without_size_checks(ir: IR) -> IR:
    """Return a copy that accepts assumed sizes: expectations and bounds need not satisfy the graph's constraints."""
    copy = ir.clone()
    for graph in copy.all_graphs():
        graph.nodes = [node for node in graph.nodes if node.op_type != _SIZE_CHECK]
        graph.constraints = []
    return copy


def _total_in(case: str, ir: IR, assumed: Mapping[str, DataSize], sizes: Mapping[str, int], clock: Clock | None) -> Row:
    """Return the total of one run if the data decides for as little or as much work as possible."""
    chosen = {**{name: getattr(size, case) for name, size in assumed.items()}, **sizes}
    return row_of(case, list(leaves_of(cost(ir, chosen, case=case).per_run, {}, clock)))


def _operator(leaf: Leaf) -> str:
    return leaf.op_type
