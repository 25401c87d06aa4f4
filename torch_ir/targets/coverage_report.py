"""The coverage report."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch_ir.analysis.cost_model.node_costs import Work
from torch_ir.analysis.shapes.size_polynomials import total, weight_of
from torch_ir.errors import GraphError
from torch_ir.ir import OpNode
from torch_ir.ir.json.json_fields import Dim
from torch_ir.ir.sizes.expressions import names_in
from torch_ir.targets.coverage_text import as_text

MEASURES = ("nodes", "flops", "bytes")


@dataclass(frozen=True)
class Gap:
    """An operator that the target cannot run for one reason, with its nodes and their cost."""

    op_type: str
    why: str
    nodes: tuple[OpNode, ...]
    shapes: tuple[str, ...]
    modules: tuple[str, ...]
    sources: tuple[str, ...]
    work: Work

    @property
    def count(self) -> int:
        return len(self.nodes)

    @property
    def weight(self) -> tuple[float, float, int]:
        return weight_of(self.work.flops), weight_of(self.work.bytes), self.count


@dataclass(frozen=True)
class Piece:
    """An island: a connected group of supported nodes, and the bytes that cross its boundary.

    `function` is the body of control flow that contains it, empty for the graph itself.
    """

    function: str
    nodes: tuple[str, ...]
    flops: Dim
    bytes_in: Dim
    bytes_out: Dim


@dataclass(frozen=True)
class Decomposition:
    """The decomposition of an operator: `into` lists supported parts, `missing` unsupported ones with reasons."""

    op_type: str
    count: int
    into: tuple[str, ...]
    missing: Mapping[str, str]

    @property
    def is_legal(self) -> bool:
        return not self.missing

    def to_dict(self) -> dict[str, Any]:
        return {**vars(self), "into": list(self.into), "missing": dict(self.missing), "legal": self.is_legal}


@dataclass(frozen=True)
class CoverageReport:
    """The share of a graph that a target can run; `str()` formats the report."""

    target: str
    model_name: str
    node_count: int
    supported_count: int
    work: Work
    supported: Work
    gaps: tuple[Gap, ...]
    islands: tuple[Piece, ...]
    decompositions: tuple[Decomposition, ...] | None
    example_sizes: Mapping[str, int] = field(default_factory=dict)
    computed_once: int = 0  # further nodes, which depend on weights alone

    @property
    def is_complete(self) -> bool:
        """Whether the target can run every node that a run computes."""
        return not self.gaps

    @property
    def border_bytes(self) -> tuple[Dim, Dim]:
        """The bytes that enter and leave all islands."""
        return total(piece.bytes_in for piece in self.islands), total(piece.bytes_out for piece in self.islands)

    def share(self, by: str = "flops") -> float:
        """Return the supported share of nodes, FLOPs or bytes, from 0 to 1; 1 if there is nothing to do."""
        if by not in MEASURES:
            raise GraphError(f"unknown measure {by!r:.40}; expected one of {', '.join(MEASURES)}")
        found = self.supported_share(by)
        if found is None:
            raise GraphError(f"the share of {by} depends on {self.open_sizes_hint}")
        return found

    def supported_share(self, by: str) -> float | None:
        """Like `share`, but None if it depends on symbolic sizes."""
        if by == "nodes":
            return self.supported_count / self.node_count if self.node_count else 1.0
        return self.part(self.supported, by) if getattr(self.work, by) != 0 else 1.0

    def part(self, work: Work, by: str) -> float | None:
        """Return some work as a share of the whole; None if it depends on symbolic sizes."""
        amount, whole = getattr(work, by), getattr(self.work, by)
        if isinstance(amount, str) or isinstance(whole, str):
            return None
        return float(amount / whole) if whole else 0.0

    def to_dict(self) -> dict[str, Any]:
        """Return the report as plain JSON values; shares that depend on symbolic sizes are null."""
        into, out = self.border_bytes
        record: dict[str, Any] = {
            "target": self.target,
            "model_name": self.model_name,
            "nodes": {"total": self.node_count, "supported": self.supported_count, "share": self.share("nodes")},
            "computed_once": self.computed_once,
        }
        for by in ("flops", "bytes"):
            whole, supported = getattr(self.work, by), getattr(self.supported, by)
            record[by] = {"total": whole, "supported": supported, "share": self.supported_share(by)}
        record["unsupported"] = [self._gap_record(gap) for gap in self.gaps]
        record["islands"] = [{**vars(piece), "nodes": list(piece.nodes)} for piece in self.islands]
        record["border_bytes"] = {"in": into, "out": out}
        if self.decompositions is not None:
            record["decompositions"] = [found.to_dict() for found in self.decompositions]
        return record

    def _gap_record(self, gap: Gap) -> dict[str, Any]:
        return {
            "op_type": gap.op_type,
            "why": gap.why,
            "count": gap.count,
            "shapes": list(gap.shapes),
            "nodes": [node.name for node in gap.nodes],
            "modules": list(gap.modules),
            "sources": list(gap.sources),
            **{by: {"total": getattr(gap.work, by), "share": self.part(gap.work, by)} for by in ("flops", "bytes")},
        }

    @property
    def open_sizes(self) -> list[str]:
        """The symbolic sizes on which the amounts depend."""
        return sorted(names_in(total([self.work.flops, self.work.bytes])))

    @property
    def open_sizes_hint(self) -> str:
        """The symbolic sizes on which the amounts depend, and how to set them."""
        names = self.open_sizes
        sizes = {name: self.example_sizes.get(name, 8) for name in names}
        options = " ".join(f"--dim {name}={size}" for name, size in sizes.items())
        return f"{', '.join(names)}: set them with {options}, or in Python with sizes={sizes}"

    def text(self, width: int | None = None) -> str:
        """Return the report as text of at most this width."""
        return as_text(self, width)

    def __str__(self) -> str:
        return self.text()
