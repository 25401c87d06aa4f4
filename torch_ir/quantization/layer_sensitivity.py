"""Sensitivity: how far the outputs of a graph move if a single layer is quantised.

    found = sensitivity(ir, weights, inputs, schemes=["int8", "int4-g64"])
    recipe = found.recipe(budget=200_000_000)      # bytes of the weights of all layers
    print(movement(ir, quantize(ir, recipe)[0], weights, inputs))

The layers are visited in program order. What comes before a layer is computed once, for all its schemes and the layers
after it; what comes after is computed again for each scheme. Only the tensors that are live at the layer are kept.

This measures how far outputs move on the given inputs. It does not measure the accuracy of the model on a task.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from torch_ir.errors import QuantizationError
from torch_ir.ir import IR, Limits, OpNode, TensorMeta
from torch_ir.ir.graph.given_graph import require_graph
from torch_ir.ir.text.amounts import human
from torch_ir.ir.text.text_table import aligned
from torch_ir.ops.neutral_state import NeutralState
from torch_ir.ops.prepare_run import with_calls_inline
from torch_ir.quantization.byte_budget import best_choice
from torch_ir.quantization.layer_choices import Ranges
from torch_ir.quantization.layers import Place
from torch_ir.quantization.observers import as_call, weight_layers
from torch_ir.quantization.quantize_graph import quantize
from torch_ir.quantization.recipe import LayerRule, Recipe, Scheme, SchemeLike
from torch_ir.quantization.report import QuantizationReport
from torch_ir.run.compiled_plan import Program, Sizes
from torch_ir.run.executor import IRExecutor, flat_inputs, read_sizes
from torch_ir.run.memory_check import MemoryCheck
from torch_ir.run.weight_files import WeightSource, fit_weights, weights_from

NOTE = "This compares outputs on the given inputs; it does not measure the accuracy of the model on a task."
Progress = Callable[..., None]


@dataclass(frozen=True)
class Movement:
    """Difference of outputs: signal-to-noise ratio in dB, cosine, the largest difference, and noise over signal."""

    sqnr: float
    cosine: float
    max_abs: float
    noise: float

    def __str__(self) -> str:
        return f"SQNR {self.sqnr:.2f} dB, cosine {self.cosine:.6f}, max abs {self.max_abs:.4g}"


class _Sums:
    """Sums over several outputs and inputs from which a `Movement` follows."""

    def __init__(self) -> None:
        self.signal = self.moved = self.both = self.error = self.largest = 0.0

    def add(self, expected: Sequence[Any], actual: Sequence[Any]) -> None:
        for one, other in zip(expected, actual, strict=True):
            if isinstance(one, Tensor) and one.is_floating_point() and one.numel():
                one, other = one.double(), other.double()
                self.signal += float(one.square().sum())
                self.moved += float(other.square().sum())
                self.both += float((one * other).sum())
                self.error += float((one - other).square().sum())
                self.largest = max(self.largest, float((one - other).abs().max()))

    def movement(self) -> Movement:
        if not math.isfinite(self.signal) or not math.isfinite(self.error):
            raise QuantizationError("the outputs contain NaN or infinity, so differences cannot be measured")
        noise = self.error / self.signal if self.signal else math.inf if self.error else 0.0
        sqnr = -10 * math.log10(noise) if noise else math.inf
        lengths = math.sqrt(self.signal * self.moved)
        return Movement(sqnr, self.both / lengths if lengths else 1.0, self.largest, noise)


@dataclass(frozen=True)
class LayerSensitivity:
    """One layer quantised by one scheme, all others in float."""

    name: str
    scheme: str
    bytes_before: int
    bytes_after: int
    movement: Movement


@dataclass(frozen=True)
class Sensitivity:
    """The sensitivity of each layer, for each scheme, and the layers that no scheme fits."""

    rows: Sequence[LayerSensitivity]
    bytes_float: int  # of layers that cannot be quantised

    def recipe(self, budget: int) -> Recipe:
        """Return the recipe with the least noise, summed over layers, whose weights take at most `budget` bytes.

        Exact for the measured noise, by dynamic programming; sizes are rounded up to 1/20000 of the budget. A weight
        that two layers share counts for each.
        """
        layers: dict[str, list[tuple[int, float, Scheme | None]]] = {}
        for row in self.rows:
            choices = layers.setdefault(row.name, [(row.bytes_before, 0.0, None)])
            choices.append((row.bytes_after, row.movement.noise, Scheme.of(row.scheme)))
        chosen = best_choice([[pair[:2] for pair in choices] for choices in layers.values()], budget - self.bytes_float)
        rules = [LayerRule(name, choices[at][2]) for (name, choices), at in zip(layers.items(), chosen, strict=True)]
        # `a` also matches the path of `a#1`
        return Recipe(tuple(sorted(rules, key=lambda rule: "#" not in rule.match)))

    def predicted(self, recipe: Recipe) -> float:
        """Return the SQNR of a recipe in dB if the noise of layers adds up."""
        noise = 0.0
        for row in self.rows:
            rule = recipe.rule_for(row.name, row.name.partition("#")[0], "*")
            if rule is not None and rule.scheme is not None and str(rule.scheme) == row.scheme:
                noise += row.movement.noise
        return -10 * math.log10(noise) if noise else math.inf

    def to_dict(self) -> dict[str, Any]:
        """Return the rows for JSON."""
        return {"note": NOTE, "layers": [asdict(row) for row in self.rows], "bytes_float": self.bytes_float}

    def __str__(self) -> str:
        """A table, the most sensitive layer first."""
        rows = [["layer", "scheme", "before", "after", "SQNR dB", "cosine", "max abs"]]
        for row in sorted(self.rows, key=lambda row: row.movement.sqnr):
            moved = row.movement
            sizes = (human(size, "B") for size in (row.bytes_before, row.bytes_after))
            rows.append(
                [row.name, row.scheme, *sizes, f"{moved.sqnr:.2f}", f"{moved.cosine:.6f}", f"{moved.max_abs:.3g}"]
            )
        return "\n".join([*aligned(rows, left=(0, 1)), NOTE])


def movement(
    ir: IR, quantized: IR, weights: WeightSource, inputs: Iterable[Any], *, limits: Limits = Limits()
) -> Movement:
    """Run both graphs and return how far the outputs of the quantised one are from those of the original."""
    require_graph(ir, "movement")
    require_graph(quantized, "movement")
    sums = _Sums()
    values = list(inputs)
    runs = (_outputs(IRExecutor(graph, weights, limits=limits), values) for graph in (ir, quantized))
    for expected, actual in zip(*runs, strict=True):
        sums.add(expected, actual)
    return sums.movement()


def _outputs(executor: IRExecutor, inputs: Sequence[Any]) -> list[tuple[Any, ...]]:
    """Run on all inputs in order: buffers that the model changes keep their values."""
    return [executor.run(flat_inputs(executor.ir, *as_call(given))).outputs for given in inputs]


def sensitivity(
    ir: IR,
    weights: WeightSource,
    inputs: Iterable[Any],
    schemes: Sequence[SchemeLike] = ("int8", "int4"),
    *,
    ranges: Ranges | None = None,
    limits: Limits = Limits(),
    progress: Progress | None = None,
) -> Sensitivity:
    """Return how far the outputs move if only one layer is quantised, for each layer and each scheme.

    `inputs` are a few tuples or dicts of arguments. Weights of `open_weights` are read when needed, and a run that
    would take more than `limits.memory_bytes` is refused.
    """
    require_graph(ir, "sensitivity")
    wanted = [scheme for each in schemes if (scheme := Scheme.of(each)) is not None]
    if not wanted:
        raise QuantizationError("sensitivity needs at least one scheme, such as 'int8'")
    graph = with_calls_inline(ir)
    quantized = [_Quantized(graph, scheme, ranges) for scheme in wanted]
    walk = _Walk(graph, weights, list(inputs), limits)
    rows: list[LayerSensitivity] = []
    places = weight_layers(graph)
    bytes_float = 0
    for at, place in enumerate(places):
        if progress is not None:
            progress(f"layer {at + 1} of {len(places)}: {place.name}", at, len(places))
        tried = [each for each in quantized if each.has(place)]
        walk.advance(place.node)
        for each in tried:
            rows.append(each.row(place, walk.moved(each.graph, each.cone(place))))
        bytes_float += 0 if tried else quantized[0].size(place)
    return Sensitivity(rows, bytes_float)


class _Quantized:
    """A graph with all its layers quantised by one scheme."""

    def __init__(self, graph: IR, scheme: Scheme, ranges: Ranges | None) -> None:
        report: QuantizationReport
        self.graph, report = quantize(graph, scheme, ranges=ranges)
        self._known = {tensor.name for tensor in graph.tensors()}
        self._rows = {layer.name: layer for layer in report.layers}
        self._nodes = {node.name: node for node in self.graph.nodes}
        self._scheme = str(scheme)

    def has(self, place: Place) -> bool:
        return self._rows[place.name].scheme is not None

    def size(self, place: Place) -> int:
        """Return the bytes of a layer in float."""
        return self._rows[place.name].bytes_before

    def cone(self, place: Place) -> list[OpNode]:
        """Return the nodes that compute a layer from tensors of the original graph, in order."""
        wanted, found = {self._nodes[place.node.name]}, set[OpNode]()
        while wanted:
            node = wanted.pop()
            found.add(node)
            makers = (t.producer for t in node.inputs if t.name not in self._known and t.producer is not None)
            wanted.update(maker for maker in makers if maker not in found)
        return [node for node in self.graph.nodes if node in found]

    def row(self, place: Place, moved: Movement) -> LayerSensitivity:
        layer = self._rows[place.name]
        return LayerSensitivity(place.name, self._scheme, layer.bytes_before, layer.bytes_after, moved)


class _Walk:
    """The float run of a graph on several inputs, stopped before one layer after another."""

    def __init__(self, graph: IR, weights: WeightSource, inputs: Sequence[Any], limits: Limits) -> None:
        if not inputs:
            raise QuantizationError("sensitivity needs at least one input")
        self.graph = graph
        self._place = {node: at for at, node in enumerate(graph.nodes)}
        self._at = 0
        bound = fit_weights(graph, weights_from(weights), {})
        self._params = {param.name: value for param, value in zip(graph.params, bound, strict=True)}
        self._states: list[dict[str, Any]] = []
        self._sizes: list[Sizes] = []
        for given in inputs:
            values = flat_inputs(graph, *as_call(given))
            self._sizes.append(read_sizes(graph, values))
            MemoryCheck(graph, limits, streamed=True).check(self._sizes[-1])
            self._states.append(dict(zip((tensor.name for tensor in graph.graph_inputs), values, strict=True)))
        self._expected = [self._rest(state, sizes, 0) for state, sizes in zip(self._states, self._sizes, strict=True)]

    def advance(self, node: OpNode) -> None:
        """Compute everything before a node, and keep what it and later nodes read."""
        end = self._place[node]
        nodes, later = self.graph.nodes[self._at : end], self.graph.nodes[end:]
        live = {tensor.name for after in (*later, self.graph.returns) for tensor in after.inputs}
        for index, sizes in enumerate(self._sizes):
            made = self._run(self.graph, nodes, self._states[index], sizes, live)
            self._states[index] = {name: value for name, value in made.items() if name in live}
        self._at = end

    def moved(self, quantized: IR, cone: Sequence[OpNode]) -> Movement:
        """Return how far the outputs move if the next node is computed by these nodes of a quantised graph."""
        sums = _Sums()
        node = self.graph.nodes[self._at]
        names = {tensor.name for tensor in node.outputs}
        for state, sizes, expected in zip(self._states, self._sizes, self._expected, strict=True):
            layer = self._run(quantized, cone, state, sizes, names)
            sums.add(expected, self._rest(layer, sizes, self._at + 1))
        return sums.movement()

    def _rest(self, state: Mapping[str, Any], sizes: Sizes, start: int) -> list[Any]:
        """Return the outputs, computed from the values before a node."""
        wanted = [tensor.name for tensor in self.graph.graph_outputs]
        made = self._run(self.graph, self.graph.nodes[start:], state, sizes, set(wanted))
        return [made[name] for name in wanted]

    def _run(
        self, ir: IR, nodes: Sequence[OpNode], state: Mapping[str, Any], sizes: Sizes, wanted: set[str]
    ) -> dict[str, Any]:
        """Run nodes on known values; return those that are wanted, and the given ones."""
        held = {**self._params, **state}
        read = dict.fromkeys(tensor for node in nodes for tensor in node.inputs if tensor.name in held)
        made = [tensor for node in nodes for tensor in node.outputs if tensor.name in wanted]
        program = Program(ir, nodes, list(read), made, lazy=True)
        with torch.no_grad(), NeutralState():
            values = program(*(held[tensor.name] for tensor in read), dict(sizes))
        return {**state, **{name: held[name] for name in wanted if name in self._params}, **_named(made, values)}


def _named(tensors: Sequence[TensorMeta], values: Sequence[Any]) -> dict[str, Any]:
    return {tensor.name: value for tensor, value in zip(tensors, values, strict=True)}
