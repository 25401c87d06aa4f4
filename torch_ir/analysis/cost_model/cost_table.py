"""Cost report of a graph: a row for every module, operator or node, totals, memory, and time on a device.

report = cost_report(ir, by="op", sizes={"batch": 8}, device=Roofline.parse("peak=312TFLOPs,bw=2.0TB/s"))
report.rows, report.total, report.memory.peak
print(report)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from torch_ir.analysis.cost_model.node_costs import cost, sized
from torch_ir.analysis.cost_model.roofline import Roofline
from torch_ir.analysis.cost_model.table_rows import (
    Leaf,
    Row,
    leaves_of,
    most_first,
    parameters,
    row_of,
    rows_by_module,
    rows_of,
    weights_behind,
)
from torch_ir.analysis.cost_model.traffic import bytes_of
from torch_ir.analysis.memory.kv_cache_report import KvCache, kv_cache
from torch_ir.analysis.memory.live_tensors import Liveness, liveness
from torch_ir.analysis.shapes.size_polynomials import total
from torch_ir.errors import GraphError
from torch_ir.ir import IR
from torch_ir.ir.graph.given_graph import require_graph
from torch_ir.ir.json.json_fields import Dim
from torch_ir.ir.regroup.functions import check_size_inline

GROUPINGS = ("module", "op", "node")


@dataclass(frozen=True)
class CostReport:
    """Cost of one run of a graph; `once` is what depends on weights alone and is computed when they are bound.

    With open sizes, amounts are expressions; order, shares, intensities and times assume 1024 for each.
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

    def to_dict(self) -> dict[str, Any]:
        """Return the report for `json.dumps`."""
        at = self.memory.at
        return {
            "model_name": self.model_name,
            "sizes": dict(self.sizes),
            "open_sizes": list(self.open_sizes),
            "device": self.device and {"peak": self.device.peak, "bandwidth": self.device.bandwidth},
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
        }

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
) -> CostReport:
    """Return the cost of a graph by module, operator or node, largest first; rows after `top` are merged.

    With `depth`, deeper modules are merged into their parent. The nodes inside a call are counted; with by="node", the
    row is the whole call.
    """
    require_graph(ir, "cost_report")
    if by not in GROUPINGS:
        raise GraphError(f"{by!r} is not one of {', '.join(GROUPINGS)}")
    check_size_inline(ir)
    costs = cost(ir, sizes)
    carried = weights_behind(ir.params, (row.node for row in costs.once.nodes))
    leaves = list(leaves_of(costs.per_run, carried))
    if by == "module":
        rows = rows_by_module(leaves, ir.params, depth, device)
    else:
        rows = rows_of(leaves, _operator if by == "op" else lambda leaf: leaf.top, device)
    graph = sized(ir, sizes or {})
    whole = row_of("total", leaves, device)
    return CostReport(
        ir.model_name,
        by,
        tuple(most_first(rows, top)),
        replace(whole, params=parameters(ir.params)),
        row_of("once", list(leaves_of(costs.once, carried)), device),
        tuple(most_first(rows_of((leaf for leaf in leaves if leaf.work.communication), _operator, device), None)),
        total(map(bytes_of, ir.params)),
        liveness(ir, sizes),
        kv_cache(graph),
        costs.unknown,
        dict(sizes or {}),
        tuple(graph.symbols),
        device,
    )


def _operator(leaf: Leaf) -> str:
    return leaf.op_type
