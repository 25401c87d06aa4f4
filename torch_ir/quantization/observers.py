"""Observed ranges: run a graph on inputs, one at a time, and record the values that each layer reads.

    ranges = observe_ranges(ir, weights, inputs)                       # the lowest and highest value
    ranges = observe_ranges(ir, weights, inputs, method="percentile")  # without the outermost 0.01 %
    ranges = observe_ranges(ir, weights, inputs, method="mse")         # the range with the least rounding error

Memory does not grow with the number of inputs: of each tensor, a histogram is kept.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from torch_ir.analysis.values.rewrite_context import Knowledge
from torch_ir.errors import QuantizationError, did_you_mean
from torch_ir.formats.table_file import read_table
from torch_ir.ir import IR, Limits, TensorMeta
from torch_ir.ir.files.atomic_write import write_text
from torch_ir.ir.graph.given_graph import require_graph
from torch_ir.ops.neutral_state import NeutralState, neutral
from torch_ir.ops.prepare_run import with_calls_inline
from torch_ir.quantization.activation_nodes import Range
from torch_ir.quantization.layers import Place, find_places, flat_places, kind_of
from torch_ir.run.executor import IRExecutor, flat_inputs
from torch_ir.run.stored import loaded
from torch_ir.run.weight_files import WeightSource, fit_weights, weights_from

METHODS = ("minmax", "percentile", "mse")
_BINS = 2048
_STEPS = 255  # of an 8-bit integer
_SHRINKS = 64  # candidates of `mse`
Progress = Callable[..., None]


class Histogram:
    """Counts values in bins of equal width around 0; the covered range doubles as needed."""

    def __init__(self) -> None:
        self.low, self.high = math.inf, -math.inf
        self._reach = 0.0  # bins cover -reach to reach
        self._counts = torch.zeros(_BINS, dtype=torch.float64)

    def add(self, values: Tensor) -> None:
        """Count the elements of a tensor."""
        flat = values.detach().float().flatten()
        if not flat.numel():
            return
        low, high = (bound.item() for bound in torch.aminmax(flat))
        if not (math.isfinite(low) and math.isfinite(high)):
            raise QuantizationError("it contains NaN or infinity")
        self.low, self.high = min(self.low, low), max(self.high, high)
        self._cover(max(abs(low), abs(high)))
        self._counts += torch.histc(flat.double(), _BINS, -self._reach, self._reach)  # the reach may exceed float32

    def _cover(self, largest: float) -> None:
        if not self._reach:
            self._reach = 2.0 ** math.ceil(math.log2(max(largest, 1e-30)))
        while self._reach < largest:
            inner = self._counts.reshape(-1, 2).sum(1)
            self._counts = torch.nn.functional.pad(inner, (_BINS // 4, _BINS // 4))
            self._reach *= 2

    @neutral
    def range(self, method: str, percentile: float) -> Range:
        """Return the range to quantise by."""
        if method == "minmax":
            return self.low, self.high
        return self._between(percentile) if method == "percentile" else self._least_error()

    def _between(self, percentile: float) -> Range:
        """Return the range without the values beyond a percentile, on each side."""
        share = torch.cumsum(self._counts, 0) / self._counts.sum()
        width = 2 * self._reach / _BINS
        first = int(torch.searchsorted(share, torch.tensor(1 - percentile / 100, dtype=share.dtype)))
        last = int(torch.searchsorted(share, torch.tensor(percentile / 100, dtype=share.dtype)))
        low, high = -self._reach + first * width, -self._reach + (min(last, _BINS - 1) + 1) * width
        return max(self.low, low), min(self.high, high)

    def _least_error(self) -> Range:
        """Return the part of the range with the least expected squared error: rounding inside, clipping outside."""
        width = 2 * self._reach / _BINS
        middles = torch.arange(_BINS, dtype=torch.float64) * width + (width / 2 - self._reach)
        best = (math.inf, (self.low, self.high))
        for step in range(_SHRINKS):
            low, high = (bound * (1 - step / _SHRINKS) for bound in (min(self.low, 0.0), max(self.high, 0.0)))
            clipped = middles - middles.clamp(low, high)
            inside = self._counts[clipped == 0].sum() * ((high - low) / _STEPS) ** 2 / 12
            error = float((self._counts * clipped**2).sum() + inside)
            best = min(best, (error, (low, high)), key=lambda pair: pair[0])
        return best[1]


def observe_ranges(
    ir: IR,
    weights: WeightSource,
    inputs: Iterable[Any],
    *,
    method: str = "minmax",
    percentile: float = 99.99,
    progress: Progress | None = None,
) -> dict[str, Range]:
    """Return the range of the input of each layer, by layer name, over some inputs of the graph.

    Each input is a tuple of tensors, as in a call of the model, or a dict of keyword arguments; a generator is consumed
    one by one. `weights` are a state dict, a model or a checkpoint; those of `open_weights` are read when needed.
    """
    require_graph(ir, "observe_ranges")
    if method not in METHODS:
        close = did_you_mean(method, METHODS) if isinstance(method, str) else ""
        raise QuantizationError(f"unknown method {method!r:.40}; expected one of {', '.join(METHODS)}{close}")
    if not 50 < percentile <= 100:
        raise QuantizationError(f"percentile must be above 50 and at most 100, not {percentile!r:.40}")
    graph = with_calls_inline(ir)
    read = layers_by_input(graph)
    with NeutralState(new_on_cpu=True):
        seen: dict[str, Histogram] = {name: Histogram() for name in read}

    def watch(tensor: TensorMeta, value: Any, sizes: object) -> None:
        if tensor.name in seen:
            try:
                seen[tensor.name].add(value)
            except QuantizationError as error:
                raise QuantizationError(f"cannot observe the input of {read[tensor.name][0]!r}: {error}") from None

    executor = IRExecutor(graph, weights, watch=watch)
    if any(param.name in seen for param in graph.params):  # a layer reads it as other layers read activations
        for param, value in zip(graph.params, fit_weights(graph, weights_from(weights), {}), strict=True):
            if param.name in seen:
                watch(param, loaded(value), {})
    count = 0
    for given in inputs:
        if progress is not None:
            progress(f"observing input {count + 1}")
        values = flat_inputs(graph, *as_call(given))
        for tensor, value in zip(graph.graph_inputs, values, strict=True):
            watch(tensor, value, {})
        for target, value in executor.run(values).mutations.items():
            watch(target, value, {})
        count += 1
    if not count:
        raise QuantizationError("observe_ranges was given no inputs")
    for name, histogram in seen.items():
        if histogram.low > histogram.high:
            raise QuantizationError(f"the input of {read[name][0]!r} has no elements in any of {count} inputs")
    found = {tensor: histogram.range(method, percentile) for tensor, histogram in seen.items()}
    return {name: found[tensor] for tensor, names in read.items() for name in names}


def read_ranges(path: str | os.PathLike[str]) -> dict[str, Range]:
    """Read a file of ranges that `write_ranges` wrote."""
    found = read_table(Path(path), Limits(), "ranges")
    for name, pair in found.items():
        is_pair = isinstance(pair, list) and len(pair) == 2 and all(type(bound) in (int, float) for bound in pair)
        if not is_pair or not all(map(math.isfinite, pair)) or pair[0] > pair[1]:
            raise QuantizationError(f"{path}: the range of {name!r:.80} must be two numbers, the lower one first")
    return {name: (float(low), float(high)) for name, (low, high) in found.items()}


def write_ranges(path: str | os.PathLike[str], ranges: Mapping[str, Range]) -> None:
    """Write ranges as JSON, atomically: one pair of numbers per layer."""
    write_text(path, json.dumps(ranges, indent=2) + "\n")


def layers_by_input(graph: IR) -> dict[str, list[str]]:
    """Map the tensors that layers of a flat graph multiply by weights to the names of these layers."""
    found: dict[str, list[str]] = {}
    for place in weight_layers(graph):
        kind = kind_of(place.node)
        assert kind is not None  # it is a layer
        if not kind.is_lookup:
            found.setdefault(place.node[kind.activation].name, []).append(place.name)
    return found


def weight_layers(graph: IR) -> list[Place]:
    """Return the layers of a flat graph: the products with a weight."""
    known = Knowledge.of(graph)
    places = flat_places(find_places(graph))
    return [place for place in places if (kind := kind_of(place.node)) and known.is_weight(place.node[kind.weight])]


def as_call(given: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return one input as positional and keyword arguments."""
    if isinstance(given, Mapping):
        return (), dict(given)
    return ((given,), {}) if isinstance(given, Tensor) else (tuple(given), {})
