"""Rewrite a prefill graph, node by node, into a step over a cache."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch_ir.analysis.values.rewrite_context import Knowledge
from torch_ir.errors import GraphError, ShapeError
from torch_ir.ir import IR, Branch, Dim, Expr, OpNode, Slot, TensorMeta
from torch_ir.ir.graph.free_names import FreeNames, taken_names
from torch_ir.ir.sizes.expressions import names_in
from torch_ir.ir.sizes.specialize import replaced_sizes
from torch_ir.llm.forms.fixed_parts import fixed_tensors
from torch_ir.llm.forms.form_inputs import POSITION, Form, FormInputs
from torch_ir.llm.forms.mask_kinds import MaskKind
from torch_ir.llm.forms.mixing import refuse_mixing
from torch_ir.llm.forms.position_reads import PositionReads, uniform
from torch_ir.llm.forms.recognise_attention import CacheAttention, layer_states, token_sizes
from torch_ir.llm.forms.slot_layouts import Slots, Steps
from torch_ir.llm.joined_entries import remove_idle
from torch_ir.rewrite import Builder

_END = 1 << 62  # an end of a slice beyond every size
_SCORES_RANK = 4  # batch, heads, queries, keys
_VIEW = "aten.view.default"
_ASSERTION = "aten._assert_tensor_metadata."


class StepWriter:
    """Lets attention read a cache, and what depends on positions follow the input `position`."""

    def __init__(self, graph: IR, attention: list[CacheAttention], form: Form) -> None:
        self.graph, self.form = graph, form
        batch, seq = token_sizes(graph)
        self.fixed = fixed_tensors(graph)
        self.states = {
            tensor: (layer, f"layers.{layer}.{part}")
            for layer, *pair in layer_states(graph)
            for part, tensor in zip(("key", "value"), pair, strict=True)
        }
        self.kinds = {name: kind for each in attention for name, kind in each.masks.items()}
        self.unmasked = {each.node for each in attention if not each.masks}
        self.shapes = {tensor: tensor.shape for tensor in graph.tensors()}  # as captured
        self.names = FreeNames(taken_names(graph))
        self.nodes: list[OpNode] = []
        self.current: dict[TensorMeta, TensorMeta] = {}  # what later nodes read in place of a tensor
        self.stored: dict[str, TensorMeta] = {}
        self.steps = Steps(batch, seq, graph.graph_inputs[0])
        self.layouts = form.layouts(self.steps, attention)
        self.of_size: dict[Dim, Slots] = {layout.size: layout for layout in self.layouts.values()}
        self.key_sizes = {name for size in self.of_size for name in names_in(str(size))}
        self.places: dict[Dim, tuple[TensorMeta, TensorMeta]] = {}

    def write(self) -> None:
        """Rewrite the graph in place."""
        before = list(self.graph.nodes)
        self.inputs = FormInputs(self.names, self.steps, self.layouts.values(), any(map(self._takes_last, before)))
        for tensor, (layer, place) in self.states.items():
            self.inputs.add_layer(place, tensor, self.layouts[layer], self.form.storage)
        self.inputs.add_to(self.graph, self.steps, self.form)
        self.steps.inputs = self.inputs.arguments
        self.know = Knowledge(self.graph)
        g = self._builder(before[0])
        counted = g.op("aten.arange.default", end=Expr(self.steps.seq))
        first = g.op("aten.unsqueeze.default", self=self.steps.inputs[POSITION], dim=1)
        self.steps.positions = g.op("aten.add.Tensor", self=first, other=counted)
        self.nodes += g.nodes
        self.reads = PositionReads(self.graph, self.names, self.steps, self.form.length, self.nodes.extend)
        for node in before:
            if node.op_type.startswith(_ASSERTION) and node.inputs[0] in self.fixed:
                node.inputs = ()  # of a dtype, which the rewrite keeps
            elif node.outputs and self.fixed.issuperset(node.outputs):
                self.nodes.append(node)
            else:
                self._rewrite(node)
        self._finish()
        left = set(self.graph.nodes)
        refuse_mixing((node for node in before if node in left), self.fixed, self.steps.seq)

    def _builder(self, node: OpNode) -> Builder:
        return Builder(self.know, lambda: self.names, [node])

    def _rewrite(self, node: OpNode) -> None:
        """Replace the inputs of a node, infer its sizes again, and store its result if it is a new key or value."""
        g = self._builder(node)
        before = node.inputs
        node.inputs = tuple(self._inputs(g, node))
        made: TensorMeta | None = None
        if self._takes_last(node):
            made = self._chosen(g, node)
        elif node.name in self.unmasked:
            layout = self.of_size[node["key"].shape[-2]]
            mask = self.reads.mask(g, MaskKind(), layout, "bool")
            made = g.like(node, attn_mask=mask, is_causal=False)
        elif any(new.shape != self.shapes[old] for new, old in zip(node.inputs, before, strict=True)):
            made = self._resized(g, node)
            self._check_tables(node, before)
        self.nodes += g.nodes
        if made is not None:
            self.current[node.output] = made
            node.inputs = ()
            return
        self.nodes.append(node)
        for tensor in node.outputs:
            if tensor in self.states:
                self._store(node, tensor)

    def _check_tables(self, node: OpNode, before: Sequence[TensorMeta]) -> None:
        """Raise GraphError if a table of positions, which has rows for each sequence, changes the shape of a result."""
        pairs = zip(node.inputs, before, strict=True)
        has_table = any(old in self.fixed and new is not old for new, old in pairs)
        if has_table and not any(map(self._keys, node.inputs)):
            for tensor in node.outputs:
                if tensor.shape != self.shapes[tensor]:
                    raise GraphError(f"{node.name!r:.80} ({node.op_type}) cannot read positions of each sequence")

    def _inputs(self, g: Builder, node: OpNode) -> list[TensorMeta]:
        """Return what a node reads now."""
        changing = [self.current.get(tensor, tensor) for tensor in node.inputs if tensor not in self.fixed]
        return [
            self._position_read(g, node, tensor, changing) if tensor in self.fixed else self.current.get(tensor, tensor)
            for tensor in node.inputs
        ]

    def _position_read(self, g: Builder, node: OpNode, tensor: TensorMeta, changing: list[TensorMeta]) -> TensorMeta:
        """Return what replaces a fixed tensor where a node reads it."""
        axes = self.reads.axes(tensor)
        if not axes or not changing:
            return tensor
        if len(axes) > 1:
            kind = self.kinds.get(tensor.name)
            keys = next((size for size in map(self._keys, changing) if size is not None), None)
            if kind is None or keys is None or axes != [len(tensor.shape) - 2, len(tensor.shape) - 1]:
                raise GraphError(f"{node.name!r:.80} reads {tensor.name!r:.80}, which is not the mask of an attention")
            if kind.is_uniform:
                return uniform(g, kind, tensor)
            if any(size not in (1, self.steps.batch) for size in tensor.shape[:-2]) or len(changing[0].shape) != 4:
                raise GraphError(f"the mask {tensor.name!r:.80} has other sizes than batch, queries and keys")
            return self.reads.mask(g, kind, self.of_size[keys], tensor.dtype)
        place = axes[0] - len(tensor.shape)
        aligned = [source.shape[place] for source in changing if len(source.shape) >= -place]
        keys = next((size for size in aligned if self._is_keys(size)), None)
        if keys is not None:
            if keys not in self.of_size:
                raise GraphError(f"{node.name!r:.80} reads {tensor.name!r:.80} for {keys} keys, which has no form")
            return self.reads.over_keys(tensor, self.of_size[keys])
        if not self.reads.varies(tensor):
            return tensor
        return self.reads.of_tokens(g, tensor, max(len(source.shape) for source in changing))

    def _is_keys(self, size: Dim) -> bool:
        return isinstance(size, str) and not names_in(size).isdisjoint(self.key_sizes)

    def _keys(self, tensor: TensorMeta) -> Dim | None:
        """Return the size of a tensor that is the number of keys."""
        return next((size for size in tensor.shape if size in self.of_size), None)

    def _resized(self, g: Builder, node: OpNode) -> TensorMeta | None:
        """Replace the number of tokens by that of keys, and infer the sizes of a node's results from its new inputs.

        A view, which the layout of the cache may not allow, becomes a reshape, which is returned.
        """
        keys = next((size for size in map(self._keys, node.inputs) if size is not None), None)
        if keys is not None:
            has_queries = any(self._keys(tensor) and self.steps.seq in tensor.shape for tensor in node.inputs)
            replaced = _last_size if has_queries else _every_size
            node.attrs = replaced(node.attrs, {self.steps.seq: keys})
        if node.op_type == _VIEW:
            return g.op("aten.reshape.default", self=node["self"], shape=node["size"])
        arguments = dict(zip(node.args, node.inputs, strict=True))
        hints = [dim for tensor in (*node.inputs, *node.outputs) for dim in tensor.shape]
        try:
            made = self.know.shapes.results(node.op_type, arguments, node.attrs, hints)
        except ShapeError as error:
            raise GraphError(f"{node.name!r:.80} ({node.op_type}) cannot read the cache: {error}") from None
        if made is None:
            raise GraphError(f"no shape inference for {node.name!r:.80} ({node.op_type}), which reads the cache")
        for tensor, inferred in zip(node.outputs, made, strict=True):
            tensor.shape, tensor.stride = inferred.shape, inferred.stride
        return None

    def _store(self, node: OpNode, entries: TensorMeta) -> None:
        """Write new keys or values to the cache, and let attention read them from there."""
        g = self._builder(node)
        layer, place = self.states[entries]
        layout, storage = self.layouts[layer], self.form.storage
        if layout.size not in self.places:
            self.places[layout.size] = layout.places(g)
        indices = list(self.places[layout.size])
        by_token = g.op("aten.permute.default", self=entries, dims=[0, 2, 1, 3])
        read = {}
        for suffix, values in storage.encode(g, by_token).items():
            cache = self.inputs.cache[place + suffix]
            self.stored[place + suffix] = written = g.op(
                "aten.index_put.default", self=cache, indices=indices, values=values, accumulate=False
            )
            read[suffix] = layout.collect(g, written)
        every = storage.decode(g, read, entries.dtype)
        self.current[entries] = g.op("aten.permute.default", self=every, dims=[0, 2, 1, 3])
        self.nodes += g.nodes

    def _takes_last(self, node: OpNode) -> bool:
        """Whether a node takes the last token of each sequence."""
        if node.op_type != "aten.slice.Tensor" or len(node["self"].shape) != 3 or node["self"] in self.fixed:
            return False
        start, end = node["start"], node["end"]
        starts_last = start == -1 or start == f"{self.steps.seq} - 1"
        reaches_end = end is None or end == self.steps.seq or (isinstance(end, int) and end > _END)
        return node["dim"] in (1, -2) and self.shapes[node["self"]][1] == self.steps.seq and starts_last and reaches_end

    def _chosen(self, g: Builder, node: OpNode) -> TensorMeta:
        """Return the tokens of `logits_at`, in place of the last."""
        rows, chosen = node["self"], self.steps.inputs["logits_at"]
        index = g.op("aten.unsqueeze.default", self=chosen, dim=2)
        index = g.op("aten.expand.default", self=index, size=[-1, -1, rows.shape[2]])
        return g.op("aten.gather.default", self=rows, dim=1, index=index)

    def _finish(self) -> None:
        graph = self.graph
        tensors = _named(graph.output_tree, graph.graph_outputs)
        outputs = {name: self.current.get(tensor, tensor) for name, tensor in tensors.items()}
        if lost := next((place for place in self.inputs.cache if place not in self.stored), None):
            raise GraphError(f"the cache tensor {lost!r:.80} is not computed from the tokens, so that it has no form")
        stored = [self.stored[place] for place in self.inputs.cache]
        graph.graph_outputs = [*outputs.values(), *stored]
        slots = list(map(Slot, range(len(outputs) + len(stored))))
        entries = Branch("dict", tuple(slots[len(outputs) :]), tuple(self.inputs.cache))
        graph.output_tree = Branch("dict", (*slots[: len(outputs)], entries), (*outputs, "cache"))
        graph.nodes[:] = self.nodes
        remove_idle(graph)


def _named(tree: Any, tensors: list[TensorMeta]) -> dict[str, TensorMeta]:
    """Return the outputs of a graph that are not in its cache."""
    if not isinstance(tree, Branch) or tree.kind != "dict":
        raise GraphError("prefill returns no dict of logits and cache; make such a graph with torch_ir.llm.extract_llm")
    pairs = zip(tree.keys, tree.items, strict=True)
    return {key: tensors[item] for key, item in pairs if isinstance(item, Slot)}


def _every_size(attrs: Mapping[str, Any], new: Mapping[str, Dim]) -> dict[str, Any]:
    """Replace sizes in the attributes of a node that reads keys or values alone."""
    return {name: replaced_sizes(value, new) for name, value in attrs.items()}


def _last_size(attrs: Mapping[str, Any], new: Mapping[str, Dim]) -> dict[str, Any]:
    """Replace sizes in the attributes of a node that reads scores, whose last dimension is that of the keys."""
    changed = dict(attrs)
    for name, value in attrs.items():
        if isinstance(value, list) and value:
            changed[name] = [*value[:-1], replaced_sizes(value[-1], new)]
        elif attrs.get("dim") == -1 or attrs.get("dim") == _SCORES_RANK - 1:
            changed[name] = replaced_sizes(value, new)
    return changed
