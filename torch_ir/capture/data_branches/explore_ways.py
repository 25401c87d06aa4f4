"""Capture every path through a model's branches on data, and join them in one graph."""

from __future__ import annotations

import heapq
import warnings
from collections.abc import Callable, Mapping
from itertools import islice

from torch_ir.capture.data_branches.decision_paths import Path
from torch_ir.capture.data_branches.join_runs import Outcomes, Way, WaysDifferError, join
from torch_ir.errors import CaptureWarning, ConversionError, ExportError, TorchIRError
from torch_ir.ir import IR


def explored(capture: Callable[[Path], IR], limit: int) -> IR:
    """Return the joined graph of at most `limit` paths; the outcomes of other paths stay guarded."""
    ways: list[Way] = []
    failures: dict[Outcomes, TorchIRError] = {}
    waiting: list[tuple[int, Outcomes]] = [(0, ())]  # shortest first, so that early decisions are complete
    while waiting and len(ways) + len(failures) < limit:
        forced = heapq.heappop(waiting)[1]
        path = Path(forced, may_choose=limit > 1)
        try:
            ir = capture(path)
        except (ExportError, ConversionError) as error:
            failures[tuple(path.taken)] = error
        else:
            ways.append(Way(tuple(path.taken), ir))
        for depth in range(len(forced), len(path.taken)):
            other = (*path.taken[:depth], not path.taken[depth])
            heapq.heappush(waiting, (len(other), other))
    if not ways:
        raise next(iter(failures.values()))
    if limit > 1 and (waiting or failures):
        _tell_what_is_left_out(limit if waiting else 0, failures)
    try:
        return join(ways)
    except WaysDifferError:  # if only one path writes, torch renames the nodes of only one
        retraced = ((way.taken, Path(way.taken, is_retraced=True)) for way in ways)
        return join([Way(taken, capture(path)) for taken, path in retraced])


def _tell_what_is_left_out(limit: int, failures: Mapping[Outcomes, TorchIRError]) -> None:
    reasons = [f"{limit} paths were captured and there are more"] if limit else []
    reasons += [str(error) for error in islice(failures.values(), 2)]
    warnings.warn(
        f"not every path through the model is in the graph: {'; '.join(reasons)}", CaptureWarning, stacklevel=2
    )
