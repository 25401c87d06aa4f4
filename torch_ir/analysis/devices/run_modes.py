"""Times of a graph by the way it runs: eager, in the executor, or compiled.

eager       every node, and the calls of modules around them
executor    the nodes of every run; those over weights alone were computed before
compiled    the same, with neighbouring pointwise nodes, reductions and normalisations as one kernel
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from torch_ir.analysis.cost_model.node_costs import Cost, cost
from torch_ir.analysis.cost_model.times import Clock
from torch_ir.analysis.cost_model.traffic import bytes_of, is_view
from torch_ir.analysis.dependencies.partition import islands
from torch_ir.analysis.devices.calibration import COLD, COMPILED, EAGER, MODES, WARM, Calibration
from torch_ir.analysis.devices.operator_families import is_fusible
from torch_ir.analysis.shapes.size_polynomials import total, weight_of
from torch_ir.analysis.values.prologue import split_prologue
from torch_ir.errors import DeviceError, did_you_mean
from torch_ir.ir import IR
from torch_ir.ir.graph.origins import modules_around
from torch_ir.ir.regroup.functions import FUSED, inline_all, outline

_KERNEL = f"{FUSED}kernel"


@dataclass(frozen=True)
class RunTime:
    """Seconds of a run: of kernels, of starting them, and what a run takes beside its nodes."""

    kernels: float
    dispatch: float
    run: float
    is_asynchronous: bool

    @property
    def seconds(self) -> float:
        if self.is_asynchronous:
            return self.run + max(self.kernels, self.dispatch)
        return self.run + self.kernels + self.dispatch

    def to_dict(self) -> dict[str, float]:
        """Return the seconds for `json.dumps`."""
        return {"seconds": self.seconds, "kernels": self.kernels, "dispatch": self.dispatch, "run": self.run}


def check_mode(mode: str) -> None:
    """Raise DeviceError for a mode that does not exist."""
    if mode not in MODES:
        raise DeviceError(f"unknown mode {mode!r:.40}{did_you_mean(mode, MODES)}; expected one of {', '.join(MODES)}")


def run_time(ir: IR, device: Calibration, mode: str, sizes: Mapping[str, int] | None = None) -> RunTime:
    """Return the predicted time of one run in a mode."""
    graph = as_run(ir, mode)
    return _time_of(graph, cost(graph, sizes), device, mode)


def run_times(ir: IR, device: Calibration, sizes: Mapping[str, int] | None = None) -> dict[str, RunTime]:
    """Return the predicted times of one run in each mode; eager and executor run the same nodes."""
    flat = as_run(ir, EAGER)
    costs, compiled = cost(flat, sizes), as_run(flat, COMPILED)
    return {
        mode: _time_of(compiled, cost(compiled, sizes), device, mode)
        if mode == COMPILED
        else _time_of(flat, costs, device, mode)
        for mode in MODES
    }


def _time_of(graph: IR, costs: Cost, device: Calibration, mode: str) -> RunTime:
    """Return the time of a graph whose nodes are those that run."""
    times = Clock(device_for(graph, device, mode)).graph(part_of_run(costs, mode))
    modules = len(module_calls(graph)) * device.overheads.module if mode == EAGER else 0.0
    return RunTime(
        times.computing + times.moving + times.sending,
        times.dispatching + times.host + modules,
        device.overheads.of_run(mode),
        device.is_asynchronous,
    )


def as_run(ir: IR, mode: str) -> IR:
    """Return a copy of the graph with the nodes that run: calls inlined, and in compiled code, kernels fused."""
    check_mode(mode)
    copy = ir.clone()
    inline_all(copy)
    if mode == COMPILED:
        once = set(split_prologue(copy)[0])
        numbers = {symbol.tensor for symbol in copy.symbols.values()}  # a size that a node decides must stay visible
        chosen = {
            node for node in copy.nodes if node not in once and is_fusible(node) and numbers.isdisjoint(node.outputs)
        }
        for number, island in enumerate(islands(copy, chosen)):
            if len(island.nodes) > 1 and not all(map(is_view, island.nodes)):
                outline(copy, island.nodes, f"kernel_{number}", _KERNEL)
    return copy


def part_of_run(costs: Cost, mode: str) -> Cost:
    """Return what a run computes: in eager mode, also what depends on weights alone."""
    return costs if mode == EAGER else costs.per_run


def device_for(ir: IR, device: Calibration, mode: str) -> Calibration:
    """Return the device as it runs this graph: weights that fit into its cache stay there."""
    held = weight_of(total(map(bytes_of, ir.params)))
    return replace(device, mode=mode, weights=WARM if held <= device.cache / 2 else COLD)


def module_calls(ir: IR) -> set[tuple[str, int]]:
    """Return the calls of modules that lead to the nodes of a graph."""
    calls = set()
    for node in ir.nodes:
        around = dict(text.rsplit("@", 1) for text in node.origin.outer)
        calls |= {(path, int(around.get(path, 0))) for path in modules_around(node.origin.module)[:-1]}
        calls.add((node.origin.module, node.origin.call))
    return calls
