"""Merge linear layers of one module that read the same tensor, such as query, key and value, into one and a split.

One larger product replaces several, and the input is read once. The parts are views of its result, which lives as long
as any of them, so peak memory may grow; layers of different modules, which are needed at different times, stay apart.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence

from torch_ir.analysis.cost_model.traffic import is_view
from torch_ir.analysis.dependencies.order import topological_order
from torch_ir.analysis.shapes.strides import moved_by
from torch_ir.analysis.values.rewrite_context import Knowledge
from torch_ir.errors import ShapeError
from torch_ir.ir import IR, OpNode, TensorMeta
from torch_ir.ir.graph.free_names import FreeNames, taken_names
from torch_ir.passes.pass_registry import named_pass
from torch_ir.passes.weights.affine import LINEAR, Layer, layer_of, obstacle
from torch_ir.rewrite import Builder
from torch_ir.rewrite.change_log import current_journal

_NAME = "merge-projections"
_SPLITS = ("aten.split.Tensor", "aten.split_with_sizes.default")


@named_pass(_NAME, may_raise=["peak"])
def merge_projections(ir: IR) -> int:
    """Merge linear layers of one module that read the same tensor into one layer with concatenated weights.

    before   q = linear(x, wq);  k = linear(x, wk)
    after    q, k = split(linear(x, cat([wq, wk])), [8, 8], -1)
    """
    merging = _Merging(ir)
    made = {group[0].node: merging.merged(group) for group in _groups(ir, merging.know)}
    if merging.gone:
        ir.nodes = topological_order(
            new for node in ir.nodes for new in (*made.get(node, ()), node) if new not in merging.gone
        )
    return merging.count


def _groups(ir: IR, know: Knowledge) -> list[list[Layer]]:
    """Return the groups to merge: layers of one module with the same input and the same weight dtype."""
    groups: dict[Hashable, list[Layer]] = {}
    for node in ir.nodes:
        layer = layer_of(node, know.is_weight) if node.op_type == LINEAR else None
        if layer is not None:
            module = node.origin.module.rpartition(".")[0]
            groups.setdefault((node["input"], layer.weight.dtype, module), []).append(layer)
    return [group for group in groups.values() if len(group) > 1]


class _Merging:
    """One run over a graph."""

    def __init__(self, ir: IR) -> None:
        self.ir = ir
        self.know = Knowledge.of(ir)
        self.names = FreeNames(taken_names(ir))
        self.copying = {node for node in ir.nodes if not is_view(node)}
        self.gone: set[OpNode] = set()
        self.count = 0

    def merged(self, group: Sequence[Layer]) -> list[OpNode]:
        """Return the nodes that replace the mergeable layers of a group; none if fewer than two are."""
        group = _allowed(group, map(self._objection, group))
        while len(group) > 1:
            build = Builder(self.know, lambda: self.names, [layer.node for layer in group])
            results = [self._results(layer) for layer in group]
            try:
                parts = iter(_parts(build, group, results))
                pairs = [[(old, next(parts)) for old in made] for made in results]
                reasons = [self._stride_objection(each) for each in pairs]
            except ShapeError as error:
                reasons = [str(error)] * len(group)
            if not any(reasons):
                self._replace(group, pairs)
                return build.nodes
            for node in reversed(build.nodes):
                node.inputs = ()
            group = _allowed(group, reasons)
        return []

    def _results(self, layer: Layer) -> list[TensorMeta]:
        """Return the result of a layer, or its parts if it was merged before and is only split: one split is enough."""
        (reader, *others) = layer.made.consumers or [layer.node]
        is_split = reader.op_type in _SPLITS and not others and reader["dim"] in (-1, len(layer.made.shape) - 1)
        if is_split and not any(map(self.know.is_held, reader.outputs)):
            return list(reader.outputs)
        return [layer.made]

    def _replace(self, group: Sequence[Layer], pairs: Sequence[Sequence[tuple[TensorMeta, TensorMeta]]]) -> None:
        current_journal().merged(self.ir, [layer.node for layer in group])
        for layer, each in zip(group, pairs, strict=True):
            for old, part in each:
                old.replace_all_uses_with(part)
                if old.producer is not None and old.producer is not layer.node:  # the split of its result
                    old.producer.inputs = ()
                    self.gone.add(old.producer)
            layer.node.inputs = ()
            self.gone.add(layer.node)
            current_journal().changed(_NAME, layer.node.name, layer.node.origins)
        self.count += 1

    def _objection(self, layer: Layer) -> str:
        if not self.know.names_no_size(layer.node):
            return "the graph reads a symbolic size from it"
        if self.know.is_held(layer.made):
            return "the caller would receive a view of a larger tensor"
        if self.know.is_counted(layer.made):
            return "an as_strided node reads its storage"
        return obstacle(self.know.is_weight, layer.weight, layer.bias)

    def _stride_objection(self, pairs: Iterable[tuple[TensorMeta, TensorMeta]]) -> str:
        """Return why a consumer of an old tensor cannot read it with the strides of its new part, or ""."""
        try:
            for old, part in pairs:
                moved_by(self.know.shapes, old, part.stride, self._obstacle)
        except ShapeError as error:
            return str(error)
        return ""

    def _obstacle(self, reader: OpNode) -> str:
        if not reader.op_type.startswith("aten."):
            return f"{reader.name!r} may need a contiguous tensor"
        if reader not in self.copying and not is_view(reader):
            return f"{reader.name!r} would have to copy it"
        return ""


def _allowed(group: Sequence[Layer], reasons: Iterable[str]) -> list[Layer]:
    """Return the layers of a group without an objection; log the others as declined."""
    kept = []
    for layer, why in zip(group, reasons, strict=True):
        if why:
            current_journal().decline(_NAME, layer.node.name, why)
        else:
            kept.append(layer)
    return kept


def _parts(g: Builder, group: Sequence[Layer], results: Iterable[Iterable[TensorMeta]]) -> Sequence[TensorMeta]:
    """Return the layers' results as parts of the result of one layer with all their weights."""
    weight = g.op("aten.cat.default", tensors=[layer.weight for layer in group], dim=0)
    bias = None
    if any(layer.bias is not None for layer in group):
        bias = g.op("aten.cat.default", tensors=[_bias(g, layer) for layer in group], dim=0)
    whole = g.op(LINEAR, input=group[0].node["input"], weight=weight, bias=bias)
    sizes = [tensor.shape[-1] for made in results for tensor in made]
    return g.ops("aten.split_with_sizes.default", self=whole, split_sizes=sizes, dim=-1)


def _bias(g: Builder, layer: Layer) -> TensorMeta:
    zeros = {"self": layer.weight, "size": [layer.channels]}
    return layer.bias or g.op("aten.new_zeros.default", **zeros)
