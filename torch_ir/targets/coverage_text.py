"""Format a coverage report: summary, unsupported operators, islands, helpful decompositions."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from torch_ir.errors import listed
from torch_ir.ir.json.json_fields import Dim
from torch_ir.ir.text.amounts import plural
from torch_ir.ir.text.text_table import cut_end
from torch_ir.targets.contract import NOT_LISTED

if TYPE_CHECKING:
    from torch_ir.targets.coverage_report import CoverageReport, Decomposition, Gap, Piece

WIDTH = 100
_SHOWN_ISLANDS = 8
_SHOWN_PARTS = 6
_UNITS = ("kB", "MB", "GB", "TB")


def as_text(report: CoverageReport, width: int | None = None) -> str:
    """Return the report in lines of at most 100 characters, or fewer if `width` is smaller."""
    sections = [_summary(report), _gaps(report), _islands(report), _decompositions(report)]
    most = min(width or WIDTH, WIDTH)
    return "\n\n".join("\n".join(cut_end(line, most) for line in lines) for lines in map(list, sections) if lines)


def _summary(report: CoverageReport) -> Iterator[str]:
    nodes = f"{report.supported_count} of {report.node_count} nodes of {report.model_name or 'the graph'}"
    shares = ", ".join(
        f"{percent(report.supported_share(by))} of {label}" for by, label in (("flops", "FLOPs"), ("bytes", "bytes"))
    )
    yield f"{report.target} runs {nodes} ({percent(report.share('nodes'))}), {shares}"
    if report.computed_once:
        yield f"{plural(report.computed_once, 'more node')} over weights alone: computed once, on the host"
    if report.open_sizes:
        yield f"shares depend on {report.open_sizes_hint}"


def _gaps(report: CoverageReport) -> Iterator[str]:
    """Yield two lines per gap: operator and amounts, then reason and location."""
    if not report.gaps:
        return
    width = max(len("not supported"), *(len(gap.op_type) for gap in report.gaps))
    yield f"{'not supported':<{width}}  count    FLOPs    bytes  shapes"
    for gap in report.gaps:
        flops, size = (percent(report.part(gap.work, by)) for by in ("flops", "bytes"))
        yield f"{gap.op_type:<{width}}  {gap.count:>5}  {flops:>7}  {size:>7}  {_shapes(gap, WIDTH - width - 27)}"
        yield f"    {cut_end(gap.why, 66)}{_place(gap)}"


def _shapes(gap: Gap, width: int) -> str:
    """Return the first shapes, cut before the arrow if too long."""
    more = f" and {len(gap.shapes) - 1} more" if len(gap.shapes) > 1 else ""
    given, arrow, made = gap.shapes[0].rpartition("-> ")
    return f"{cut_end(given, width - len(arrow + made + more))}{arrow}{made}{more}"


def _place(gap: Gap) -> str:
    inside = [f"in {gap.modules[0]}"] if gap.modules else []
    at = [f"at {gap.sources[0].rpartition('/')[2]}"] if gap.sources else []
    return f"; first {' '.join(inside + at)}" if inside or at else ""


def _islands(report: CoverageReport) -> Iterator[str]:
    count, pieces = len(report.islands), report.islands
    into, out = (_bytes(amount) for amount in report.border_bytes)
    yield f"{plural(count, 'island')}; across boundaries: {into} in, {out} out"
    for piece in pieces[:_SHOWN_ISLANDS]:
        nodes = f"{len(piece.nodes):>5} {'nodes' if len(piece.nodes) > 1 else 'node '}"
        yield f"  {_span(piece):<44}  {nodes}  {_bytes(piece.bytes_in):>9} in  {_bytes(piece.bytes_out):>9} out"
    if count > _SHOWN_ISLANDS:
        yield f"  and {count - _SHOWN_ISLANDS} more"


def _span(piece: Piece) -> str:
    names = dict.fromkeys([piece.nodes[0], piece.nodes[-1]])
    return cut_end(f"{piece.function} {' to '.join(names)}".strip(), 44)


def _decompositions(report: CoverageReport) -> Iterator[str]:
    if not report.decompositions:
        return
    legal = [found for found in report.decompositions if found.is_legal]
    left = len(report.decompositions) - len(legal)
    verdict = "then all are supported" if not left else f"{left} remain{'s' * (left == 1)} unsupported"
    yield f"decompositions: {len(legal)} of {len(report.decompositions)} become supported; {verdict}"
    for found in report.decompositions:
        yield f"  {found.op_type} {_outcome(found)}"


def _outcome(found: Decomposition) -> str:
    if found.is_legal:
        return f"-> {_parts(found.into) or 'nothing'}"
    if list(found.missing) == [found.op_type]:
        return f"remains: {found.missing[found.op_type]}"
    needed = [name if why == NOT_LISTED else f"{name} ({why})" for name, why in found.missing.items()]
    return f"remains: it needs {_parts(needed)}"


def _parts(names: Sequence[str]) -> str:
    return listed([name.removeprefix("aten.") for name in names], _SHOWN_PARTS)


def percent(share: float | None) -> str:
    """Format a share as a percentage, rounded down so that 100 % means all."""
    return "?" if share is None else f"{math.floor(share * 1000 + 1e-9) / 10:.1f} %"


def _bytes(amount: Dim) -> str:
    if isinstance(amount, str) or amount < 1000:
        return f"{amount} bytes"
    power = min((len(str(amount)) - 1) // 3, len(_UNITS))
    return f"{amount / 1000**power:.1f} {_UNITS[power - 1]}"
