"""Text of a cost report: a table, and notes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from torch_ir.analysis.devices.calibration import Calibration
from torch_ir.analysis.shapes.size_polynomials import weight_of
from torch_ir.errors import listed
from torch_ir.ir.text.amounts import count, duration, human, parameters_text, plural, three_digits
from torch_ir.ir.text.text_table import aligned, cut, cut_end

if TYPE_CHECKING:
    from torch_ir.analysis.cost_model.cost_table import CostReport
    from torch_ir.analysis.cost_model.routing import DataSize
    from torch_ir.analysis.cost_model.table_rows import Row
    from torch_ir.analysis.memory.live_tensors import Liveness, Step

_NAME_WIDTH = 44
_AMOUNT_WIDTH = 36  # of an expression
_SHOWN = 3
_LEAST = (5, 8, 4, 2, 6)  # columns to drop on a narrow terminal: FLOPs/byte, shares, params


def as_text(report: CostReport, width: int | None = None) -> str:
    """Format the report; rows that contain only views, which cost nothing, are omitted."""
    rows = [row for row in report.rows if row.params or any(row.work.amounts())]
    cells = [_titles(report), *(_cells(report, row) for row in (*rows, report.total))]
    *table, whole = aligned(cells, width=width, least=[index for index in _LEAST if index < len(cells[0])])
    line = "-" * max(map(len, table[-len(rows) - 1 :]))  # as wide as the titles and rows, without the note above
    return "\n".join([*_head(report), "", *table, line, whole, "", *_notes(report)])


def _head(report: CostReport) -> Iterator[str]:
    weights = f"{parameters_text(report.total.params)}, {human(report.weight_bytes, 'B')} of weights"
    yield f"{report.model_name or 'the graph'}: {plural(report.total.count, 'node')} per run, {weights}"
    if report.sizes:
        yield f"with {', '.join(f'{name} = {size}' for name, size in report.sizes.items())}"
    if report.open_sizes:
        yield f"open sizes: {', '.join(report.open_sizes)}; shares, intensities, order and times assume 1024 for each"
    if report.device:
        device = report.device
        figures = f"{human(round(device.peak), 'FLOP/s')}, {human(round(device.bandwidth), 'B/s')}"
        measured = ""
        if isinstance(device, Calibration):
            figures = f"{device.name}, {figures}"
            measured = f"; measured with {plural(device.threads, 'thread')} in torch {device.torch}"
        yield f"device: {figures}; compute-bound above {three_digits(device.ridge)} FLOPs per byte{measured}"
    for mode, each in report.run_times.items():
        parts = f"kernels {duration(each.kernels)}, dispatch {duration(each.dispatch)}, run {duration(each.run)}"
        shown = "; the table shows this mode" if mode == report.mode else ""
        yield f"{mode}: {duration(each.seconds)} ({parts}){shown}"


def _titles(report: CostReport) -> list[str]:
    timed = ["time", "share", "bound"] if report.device else []
    sent = ["sent"] if report.collectives else []
    return [report.by, "FLOPs", "share", "bytes", "share", "FLOPs/byte", *sent, "params", *timed]


def _cells(report: CostReport, row: Row) -> list[str]:
    whole = report.total.work
    cells = [
        _label(row),
        cut_end(human(row.work.flops), _AMOUNT_WIDTH),
        _share(weight_of(row.work.flops), weight_of(whole.flops)),
        cut_end(human(row.work.bytes, "" if isinstance(row.work.bytes, str) else "B"), _AMOUNT_WIDTH),
        _share(weight_of(row.work.bytes), weight_of(whole.bytes)),
        f"{row.work.intensity:.2f}",
        *([cut_end(human(row.work.communication, "B"), _AMOUNT_WIDTH)] if report.collectives else []),
        count(row.params),
    ]
    if report.device:
        cells += [duration(row.seconds), _share(row.seconds, report.total.seconds), row.bound if row.seconds else "-"]
    return cells


def _label(row: Row) -> str:
    """Return the name of a row, with the number of modules if it is folded."""
    times = f" \N{MULTIPLICATION SIGN}{len(row.members)}" if row.members else ""
    return cut(row.name or "(model)", _NAME_WIDTH - len(times)) + times


def _data_dependent(report: CostReport) -> Iterator[str]:
    """Yield lines about data-dependent sizes: those that are assumed, and the bounds of the total."""
    alike: dict[DataSize, list[str]] = {}
    for name, size in report.data_sizes.items():
        alike.setdefault(size, []).append(name)
    for size, names in alike.items():
        bounds = f"{size.expected} expected, {size.lower} to {size.upper} possible"
        yield f"the data decides {listed(names, _SHOWN)}: {bounds}"
    if report.lower is None or report.upper is None:
        return
    lower, whole, upper = report.lower, report.total, report.upper
    for title, unit, amounts in (
        ("FLOPs", "", [row.work.flops for row in (lower, whole, upper)]),
        ("bytes", "B", [row.work.bytes for row in (lower, whole, upper)]),
    ):
        if amounts[0] != amounts[2]:
            low, expected, high = (human(amount, unit) for amount in amounts)
            yield f"the data decides the {title}: {expected} expected, {low} at least, {high} at most"
    if report.device:
        low, expected, high = (duration(row.seconds) for row in (lower, whole, upper))
        yield f"the data decides the time: {expected} expected, {low} at least, {high} at most"


def _notes(report: CostReport) -> Iterator[str]:
    once, memory, cache = report.once, report.memory, report.cache
    for name, amount in (("FLOPs", report.total.work.flops), ("bytes", report.total.work.bytes)):
        if isinstance(amount, str):
            yield f"{name} per run: {amount}"
    for row in report.collectives:
        name = row.name.split(".")[1]
        yield f"sent by each rank: {human(row.work.communication, 'B')} in {plural(row.count, f'{name} call')}"
    yield from _data_dependent(report)
    if once.count:
        work = f"{human(once.work.flops)} FLOPs, {human(once.work.bytes, 'B')} moved"
        yield f"once, when weights are bound: {plural(once.count, 'node')}, {work}, {human(memory.once, 'B')} kept"
    if memory.at:
        yield f"peak activation memory: {human(memory.peak, 'B')} at {memory.at.node.name}: {_alive(memory, memory.at)}"
    weights, read = human(memory.weights, "B"), human(memory.read, "B")
    often = f" ({read} of them read in every run)" if read != weights else ""
    yield f"also held: inputs {human(memory.inputs, 'B')}, weights {weights}{often}"
    if cache.given or cache.left:
        yield f"KV cache: {human(cache.bytes_given, 'B')} in, {human(cache.bytes_left, 'B')} out"
    if report.unknown:
        yield f"no FLOP formula for: {', '.join(report.unknown)}"


def _alive(memory: Liveness, step: Step) -> str:
    """List the tensors of a step, largest first."""
    parts = {tensor.name: size for tensor, size in memory.alive(step).items()}
    if step.inside:
        parts["inside it"] = step.inside
    largest = sorted(parts.items(), key=lambda part: -weight_of(part[1]))
    more = [f"{len(largest) - _SHOWN} more"] if len(largest) > _SHOWN else []
    return ", ".join([*(f"{name} {human(size, 'B')}" for name, size in largest[:_SHOWN]), *more])


def _share(part: float, whole: float) -> str:
    return f"{100 * part / whole:.1f} %" if whole else "-"
