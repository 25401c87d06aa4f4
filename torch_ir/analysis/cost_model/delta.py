"""Cost difference of two graphs: totals before and after, and the modules or operators that cause it.

delta = cost_delta(one, other, by="op", sizes={"batch": 8})
delta.before.flops, delta.after.flops, delta.rows[0].name
print(delta)
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from torch_ir.analysis.cost_model.cost_summary import Measure, change, entry_points, measured, side_by_side
from torch_ir.analysis.cost_model.node_costs import Cost, Work, cost
from torch_ir.analysis.cost_model.table_rows import leaves_of, rows_of
from torch_ir.analysis.shapes.size_polynomials import weight_of
from torch_ir.errors import GraphError, did_you_mean
from torch_ir.ir import IR
from torch_ir.ir.json.json_fields import Dim
from torch_ir.ir.regroup.functions import check_size_inline
from torch_ir.ir.text.amounts import human
from torch_ir.ir.text.text_table import aligned, cut

GROUPINGS = ("op", "module")
_NAME_WIDTH = 44
_AMOUNT_WIDTH = 24  # of an expression
_NOTHING = Work()


@dataclass(frozen=True)
class RowDelta:
    """The work of a module or operator in both graphs; zero if only one graph has it."""

    name: str
    nodes: tuple[int, int]
    before: Work
    after: Work

    @property
    def size(self) -> tuple[float, float, int]:
        """Size of the change, for sorting: FLOPs, bytes, nodes."""
        return (
            abs(weight_of(self.after.flops) - weight_of(self.before.flops)),
            abs(weight_of(self.after.bytes) - weight_of(self.before.bytes)),
            abs(self.nodes[1] - self.nodes[0]),
        )

    def to_dict(self) -> dict[str, Any]:
        sides = zip(("before", "after"), self.nodes, (self.before, self.after), strict=True)
        amounts = {side: {"nodes": nodes, "flops": work.flops, "bytes": work.bytes} for side, nodes, work in sides}
        return {"name": self.name, **amounts}


@dataclass(frozen=True)
class CostDelta:
    """The costs of two graphs, and the rows that differ, largest change first.

    With open sizes, amounts are expressions; percentages and order assume 1024 for each.
    """

    before: Measure
    after: Measure
    by: str
    rows: tuple[RowDelta, ...]
    open_sizes: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        return {
            "before": asdict(self.before),
            "after": asdict(self.after),
            "open_sizes": list(self.open_sizes),
            "by": self.by,
            "rows": [row.to_dict() for row in self.rows],
        }

    def totals(self) -> list[list[str]]:
        """Return the cells of the table of totals."""
        return list(side_by_side(self.before, self.after))

    def parts(self, top: int | None = None) -> list[list[str]]:
        """Return the cells of the table of the largest changes; only titles if there are none."""
        return [[self.by, "nodes", "FLOPs", "change", "bytes", "change"], *map(_cells, self.rows[:top])]

    @property
    def note(self) -> str:
        """Explanation of the percentages if sizes are open."""
        return f"open sizes: {', '.join(self.open_sizes)}; changes assume 1024 for each" if self.open_sizes else ""

    def text(self, top: int | None = None, width: int | None = None) -> str:
        """Format both tables."""
        lines = aligned(self.totals(), width=width)
        lines += [self.note] if self.note else []
        if self.rows:
            lines += ["", *aligned(self.parts(top), width=width, least=(1,))]
        if top is not None and len(self.rows) > top:
            lines.append(f"and {len(self.rows) - top} more")
        return "\n".join(lines)

    def __str__(self) -> str:
        return self.text()


def cost_delta(one: IR, other: IR, *, by: str = "op", sizes: Mapping[str, int] | None = None) -> CostDelta:
    """Return the costs of two graphs, and the modules or operators in which they differ.

    Each graph uses those of the sizes that it has; a GraphError if neither has one.
    """
    chosen = sizes or {}
    known = {**one.symbols, **other.symbols}
    if by not in GROUPINGS:
        raise GraphError(f"unknown grouping {by!r:.60}; expected one of {', '.join(GROUPINGS)}")
    _check_sizes(chosen, known)
    given = [{name: size for name, size in chosen.items() if name in ir.symbols} for ir in (one, other)]
    for ir in (one, other):
        check_size_inline(ir)  # rows count the nodes inside calls
    costs = [cost(ir, own) for ir, own in zip((one, other), given, strict=True)]
    before, after = map(measured, (one, other), costs, given)
    rows = _rows(*(_work_by(each, by) for each in costs))
    return CostDelta(before, after, by, tuple(rows), tuple(name for name in known if name not in chosen))


def cost_deltas(one: IR, other: IR, *, by: str = "op", sizes: Mapping[str, int] | None = None) -> dict[str, CostDelta]:
    """Return a delta for each entry point that both files have, by name; the main graph has an empty name.

    Each uses those of the sizes that it has.
    """
    mine, its = entry_points(one), entry_points(other)
    known = {name: {**mine[name].symbols, **its[name].symbols} for name in mine if name in its}
    _check_sizes(sizes or {}, [size for own in known.values() for size in own])
    return {
        name: cost_delta(
            mine[name], its[name], by=by, sizes={key: size for key, size in (sizes or {}).items() if key in own}
        )
        for name, own in known.items()
    }


def _check_sizes(sizes: Collection[str], known: Collection[str]) -> None:
    for name in sizes:
        if name not in known:
            message = f"unknown size {name!r:.80}{did_you_mean(name, known)}"
            raise GraphError(f"{message}; open sizes: {', '.join(dict.fromkeys(known)) or 'none'}")


def _work_by(costs: Cost, by: str) -> dict[str, tuple[int, Work]]:
    leaves = leaves_of(costs.per_run, {})
    rows = rows_of(leaves, lambda leaf: leaf.op_type if by == "op" else leaf.module)
    return {row.name: (row.count, row.work) for row in rows}


def _rows(mine: Mapping[str, tuple[int, Work]], its: Mapping[str, tuple[int, Work]]) -> Iterator[RowDelta]:
    nothing = (0, _NOTHING)
    found = []
    for name in {**mine, **its}:
        (count, before), (new_count, after) = mine.get(name, nothing), its.get(name, nothing)
        if count != new_count or before.amounts() != after.amounts():
            found.append(RowDelta(name, (count, new_count), before, after))
    yield from sorted(found, key=lambda row: row.size, reverse=True)


def _cells(row: RowDelta) -> list[str]:
    count, new_count = row.nodes
    return [
        cut(row.name or "(model)", _NAME_WIDTH),
        str(count) if count == new_count else f"{count} -> {new_count}",
        *_from_to(row.before.flops, row.after.flops),
        *_from_to(row.before.bytes, row.after.bytes),
    ]


def _from_to(old: Dim, new: Dim) -> tuple[str, str]:
    before, after = (cut(human(amount), _AMOUNT_WIDTH) for amount in (old, new))
    return (before, "") if old == new else (f"{before} -> {after}", change(old, new) or "new")
