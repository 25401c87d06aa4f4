"""Quantise a graph: replace weights, and inputs of layers, by quantised values and nodes that restore them.

    quantized, report = quantize(ir, "int8")
    quantized, report = quantize(ir, Recipe.load("recipe.toml"), ranges=observe_ranges(ir, weights, inputs))

No weight is needed: weights are quantised by nodes of the prologue, which run when weights are bound, so the quantised
graph takes the checkpoint of the original one.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field

from torch_ir.analysis.values.constants import size_in_bytes
from torch_ir.analysis.values.rewrite_context import Knowledge, remembering
from torch_ir.errors import QuantizationError, did_you_mean
from torch_ir.ir import IR, OpNode, TensorMeta
from torch_ir.ir.graph.free_names import FreeNames, taken_names
from torch_ir.ir.graph.given_graph import ExampleInputs, Model, graph_of
from torch_ir.ir.regroup.functions import FUSED, further_entries, with_calls_open
from torch_ir.passes.pass_registry import Pass, find_pass
from torch_ir.passes.pipeline import apply_pass, prepared
from torch_ir.quantization.activation_nodes import activation_objection, quantize_activation
from torch_ir.quantization.fuse_restored import fuse_restored
from torch_ir.quantization.layer_choices import Choices, Chosen, Ranges
from torch_ir.quantization.layers import Kind, kind_of
from torch_ir.quantization.recipe import KEY, Recipe, RecipeLike, Scheme
from torch_ir.quantization.report import QuantizationReport, QuantizedLayer
from torch_ir.quantization.weight_nodes import (
    QuantizedWeight,
    objection,
    quantize_weight,
    quantized_bytes,
    restore_rows,
    restore_weight,
)
from torch_ir.rewrite import Builder


def quantize(
    ir: IR | Model, recipe: RecipeLike, *, ranges: Ranges | None = None, example_inputs: ExampleInputs | None = None
) -> tuple[IR, QuantizationReport]:
    """Return a quantised graph and a report of its layers; the given graph is not changed.

    `recipe` is a `Recipe`, a scheme for all layers such as "int8" or "int4-g64", or a dict from patterns of module
    paths to schemes, where None leaves a layer in float. `ranges`, from `observe_ranges`, are needed for static
    activations. A layer that cannot be quantised as the recipe says stays in float, and the report says why.
    """
    ir = graph_of(ir, example_inputs, "quantize")
    recipe = Recipe.of(recipe)
    if KEY in ir.extensions:
        raise QuantizationError("the graph is quantised already; quantise the original graph")
    with remembering():
        graph = with_calls_open(prepared(ir.clone()), lambda call: call.op_type.startswith(FUSED))
        choices = [Choices(each, recipe, ranges or {}) for each in (graph, *further_entries(graph).values())]
        quantizing = _Quantizing({node: chosen for each in choices for node, chosen in each.nodes.items()})
        apply_pass(graph, Pass("quantize", quantizing))
        _check_rules(recipe, quantizing.layers)
        for step in (find_pass("hoist-from-functions"), find_pass("dead-code"), Pass("fuse-restored", fuse_restored)):
            apply_pass(graph, step)
        for each in choices:
            each.forget_modules(layer.path for layer in quantizing.layers if layer.scheme)
        graph.extensions[KEY] = recipe.to_dict()
        graph.check()
    return graph, QuantizationReport(tuple(quantizing.layers))


def _check_rules(recipe: Recipe, layers: Sequence[QuantizedLayer]) -> None:
    """Raise QuantizationError for a rule that matches no layer."""
    names = {name for layer in layers for name in (layer.name, layer.path)}
    for rule in recipe.rules:
        fitting = (rule.fits(layer.name, layer.path, layer.op_type) for layer in layers) if rule.is_pattern else ()
        if rule.match not in names and not any(fitting):
            what = (
                f"{rule.match!r:.80}"
                if rule.operator == "*"
                else f"{rule.match!r:.80}, operator {rule.operator!r:.80},"
            )
            close = did_you_mean(rule.match, [layer.name for layer in layers])
            raise QuantizationError(f"the pattern {what} of the recipe matches none of {len(layers)} layers{close}")


@dataclass
class _Quantizing:
    """The pass: quantise the chosen nodes of a graph; collects the layers."""

    plan: Mapping[OpNode, Chosen]
    layers: list[QuantizedLayer] = field(default_factory=list)
    seen: set[Hashable] = field(default_factory=set)  # weights of layers, in all entry points

    def __call__(self, ir: IR) -> int:
        rewriting = _Rewriting(ir)
        nodes: list[OpNode] = []
        count = 0
        for node in ir.nodes:
            chosen, kind = self.plan.get(node), kind_of(node)
            if chosen is None or kind is None or not rewriting.known.is_weight(node[kind.weight]):
                nodes.append(node)
                continue
            why = "" if chosen.scheme is None else _objection(node, kind, chosen)
            scheme = None if why else chosen.scheme
            self.layers += _rows(node[kind.weight], kind, scheme, chosen, why, self.seen)
            nodes += [node] if scheme is None else rewriting.quantized(node, kind, chosen)
            count += scheme is not None
        ir.nodes = nodes
        return count


def _rows(
    weight: TensorMeta, kind: Kind, scheme: Scheme | None, chosen: Chosen, why: str, seen: set[Hashable]
) -> list[QuantizedLayer]:
    """Return the rows of the report for a node; `seen` are the weights of earlier layers with what is kept of them."""
    before = size_in_bytes(weight) or 0
    after = before if scheme is None else quantized_bytes(weight, kind, scheme)
    name, form = None if scheme is None else str(scheme), _kept_form(kind, scheme)
    rows = []
    for place in chosen.places:
        kept = (weight.param.keys if weight.param else place.name, form)  # in a function, a weight is an input
        rows.append(QuantizedLayer(place.name, place.path, place.node.op_type, name, before, after, kept in seen, why))
        seen.add(kept)
    return rows


def _kept_form(kind: Kind, scheme: Scheme | None) -> Hashable:
    """Return what determines the quantised values of a weight; layers that agree in it share them."""
    return scheme and (kind.channels, kind.stacked, scheme.weight, scheme.group, scheme.symmetric)


def _objection(node: OpNode, kind: Kind, chosen: Chosen) -> str:
    """Return why a layer cannot be quantised as chosen, or ""."""
    scheme = chosen.scheme
    assert scheme is not None  # the caller asked
    why = objection(node[kind.weight], kind, scheme)
    if why or kind.is_lookup or scheme.activation is None:
        return why
    if scheme.ranges == "static" and chosen.range is None:
        raise QuantizationError(
            f"static activations need the range of the input of {chosen.places[0].name!r}; "
            "pass ranges=observe_ranges(ir, weights, inputs)"
        )
    return activation_objection(node[kind.activation])


def _in_place_of(node: OpNode, made: TensorMeta, g: Builder, known: Knowledge) -> list[OpNode]:
    """Replace a node by new ones, the last of which takes its name."""
    known.replace(node.output, made)
    g.nodes[-1].name, made.name = node.name, node.output.name
    node.inputs = ()
    return g.nodes


class _Rewriting:
    """One graph in which layers are quantised; equal values are quantised once."""

    def __init__(self, ir: IR) -> None:
        self.known = Knowledge.of(ir)
        self._names = FreeNames(taken_names(ir))
        self._weights: dict[Hashable, QuantizedWeight] = {}
        self._activations: dict[Hashable, TensorMeta] = {}

    def quantized(self, node: OpNode, kind: Kind, chosen: Chosen) -> list[OpNode]:
        """Return the nodes that replace a layer, itself the last unless it selects rows."""
        scheme = chosen.scheme
        assert scheme is not None  # the caller asked
        g = Builder(self.known, lambda: self._names, [node])
        weight = node[kind.weight]
        kept = self._weight(g, weight, kind, scheme)
        if kind.is_lookup:
            return _in_place_of(node, restore_rows(g, node, kept, scheme), g, self.known)
        inputs = dict(zip(node.args, node.inputs, strict=True))
        inputs[kind.weight] = restore_weight(g, kept, weight, kind, scheme)
        if scheme.activation is not None:
            inputs[kind.activation] = self._activation(g, node[kind.activation], kind, chosen, scheme)
        node.inputs = tuple(inputs.values())
        return [*g.nodes, node]

    def _weight(self, g: Builder, weight: TensorMeta, kind: Kind, scheme: Scheme) -> QuantizedWeight:
        key = (weight, _kept_form(kind, scheme))
        if key not in self._weights:
            self._weights[key] = quantize_weight(g, weight, kind, scheme)
        return self._weights[key]

    def _activation(self, g: Builder, tensor: TensorMeta, kind: Kind, chosen: Chosen, scheme: Scheme) -> TensorMeta:
        key = (tensor, kind.by_token, scheme.activation, scheme.ranges, chosen.range)
        if key not in self._activations:
            self._activations[key] = quantize_activation(g, tensor, kind, scheme, chosen.range)
        return self._activations[key]
