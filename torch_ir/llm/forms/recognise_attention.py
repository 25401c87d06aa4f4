"""Recognise attention over a cache in a prefill graph: one description for each attention of each layer."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from torch_ir.errors import GraphError
from torch_ir.ir import IR, OpNode, TensorMeta
from torch_ir.llm.cache_layout import DECODE, cache_outputs, keyword_inputs
from torch_ir.llm.forms.fixed_parts import fixed_tensors
from torch_ir.llm.forms.growing_cache import growing
from torch_ir.llm.forms.mask_kinds import MaskKind, mask_kinds
from torch_ir.ops.schema import name_arguments

SDPA = "aten.scaled_dot_product_attention.default"
_PARTS = ("key", "value")
_PLACE = re.compile(r"layers\.(0|[1-9]\d{0,5})\.(key|value)")
_MOST_BETWEEN = 2000  # nodes that depend on keys, among which their attention is looked for
_SOFTMAX = ("aten.softmax.int", "aten._softmax.default", "aten._safe_softmax.default")
_PRODUCTS = ("aten.matmul.default", "aten.bmm.default", "aten.baddbmm.default")
_FACTORS = {"aten.mul.Tensor": 1, "aten.mul.Scalar": 1, "aten.div.Tensor": -1, "aten.div.Scalar": -1}
_ADDING = (SDPA, "aten.add.Tensor", "aten.baddbmm.default")  # readers of masks of numbers
_TRUE_IS_SEEN = {SDPA: True, "aten.masked_fill.Scalar": False, "aten.masked_fill.Tensor": False}


@dataclass(frozen=True)
class CacheAttention:
    """One attention over the keys and values of a layer, with the names of its tensors.

    `key` and `value` are the new ones, which prefill returns; `past` and `present` are the keys and values that decode
    takes and returns. `scale` is the factor of the scores after the product of queries and keys, `softcap` the bound
    of their tanh.
    """

    layer: int
    node: str  # the fused operator, or the softmax of attention written out
    query: str
    key: str
    value: str
    past: tuple[str, ...]
    present: tuple[str, ...]
    masks: dict[str, MaskKind]  # by name; empty if the operator itself is causal
    scale: float | None
    softcap: float | None = None

    @property
    def span(self) -> int | None:
        """Number of positions back that a query attends to, itself included; None if all."""
        spans = [kind.window or kind.chunk for kind in self.masks.values()]
        return min((span for span in spans if span is not None), default=None)


def cache_attention(ir: IR) -> list[CacheAttention]:
    """Return the attention of every layer of a graph from `extract_llm`, in order.

    What is not recognised raises GraphError with its layer: recurrent states, cross attention, masks of other kinds.
    """
    if not all(node.has_named_args for node in ir.nodes):
        ir = ir.clone()
        for node in ir.nodes:
            name_arguments(node)
    batch, seq = token_sizes(ir)
    ir = growing(ir, batch, seq)
    fixed = fixed_tensors(ir)
    decode = ir.functions.get(DECODE)
    past = keyword_inputs(decode, "cache") if decode is not None else {}
    present = cache_outputs(decode) if decode is not None else {}
    found = []
    for layer, key, value in layer_states(ir):
        ends = list(_ends(key))
        if not ends:
            raise GraphError(f"layer {layer}: no attention reads its keys ({key.name!r:.80})")
        found += [_Found(layer, key, value, *end, _masks(layer, *end, fixed, seq)) for end in ends]
    kinds = mask_kinds(ir, (mask for each in found for mask in each.masks), batch, seq)
    return [_described(each, fixed, kinds, past, present) for each in found]


class _Found(NamedTuple):
    """An attention of a layer: its last node, the nodes between the keys and it, and its masks."""

    layer: int
    key: TensorMeta
    value: TensorMeta
    end: OpNode
    between: list[OpNode]
    masks: list[TensorMeta]


def _described(
    found: _Found,
    fixed: set[TensorMeta],
    kinds: Mapping[TensorMeta, MaskKind | None],
    past: Mapping[str, TensorMeta],
    present: Mapping[str, TensorMeta],
) -> CacheAttention:
    layer, key, value, end, between, masks = found
    kept: dict[str, MaskKind] = {}
    for mask in masks:
        kind = kinds[mask]
        if kind is None or not all(_hides(kind, mask, node, fixed) for node in (*between, end)):
            raise GraphError(f"layer {layer}: its mask {mask.name!r:.80} is not causal, a window or a chunk")
        kept[mask.name] = kind
    if masks and all(kind.is_uniform for kind in kept.values()):
        raise GraphError(f"layer {layer}: {end.name!r:.80} masks no key, so that it is not causal")
    places = [f"layers.{layer}.{part}" for part in _PARTS]
    before, after = (tuple(held[place].name for place in places if place in held) for held in (past, present))
    query, scale, softcap = _scores(end, between)
    return CacheAttention(layer, end.name, query, key.name, value.name, before, after, kept, scale, softcap)


def token_sizes(ir: IR) -> tuple[str, str]:
    """Return the names of the sizes of `input_ids`; both must vary."""
    tokens = next((tensor for tensor in ir.graph_inputs if tensor.name == "input_ids"), None)
    if tokens is None or not cache_outputs(ir):
        raise GraphError(f"{ir!r} has no input_ids and cache; make such a graph with torch_ir.llm.extract_llm")
    sizes = [size for size in tokens.shape if isinstance(size, str) and size in ir.symbols]
    if len(sizes) != 2 or len(tokens.shape) != 2:
        raise GraphError("batch and prompt must vary: use extract_llm without `batch` and `prompt`")
    return sizes[0], sizes[1]


def layer_states(ir: IR) -> Iterator[tuple[int, TensorMeta, TensorMeta]]:
    """Yield the number, new keys and new values of each layer; raise GraphError for other states."""
    _, seq = token_sizes(ir)
    states = cache_outputs(ir)
    for place, tensor in states.items():
        found = _PLACE.fullmatch(place)
        if found is None or not states.keys() >= {f"layers.{found[1]}.{part}" for part in _PARTS}:
            name = place.removeprefix("layers.").partition(".")[0]
            message = f"layer {name:.20} keeps {place!r:.80}"
            raise GraphError(f"{message}, and only keys and values of self-attention have forms")
        if len(tensor.shape) != 4 or tensor.shape[2] != seq:
            message = f"layer {found[1]} keeps {tensor.name!r:.80} of shape {list(tensor.shape)}"
            raise GraphError(f"{message}, not [batch, heads, {seq}, size]; extract without cache_length")
    if len(set(states.values())) < len(states):
        raise GraphError("two layers, or keys and values, are the same tensor of the cache, which has no form")
    for layer in dict.fromkeys(int(place.split(".")[1]) for place in states):
        key, value = (states[f"layers.{layer}.{part}"] for part in _PARTS)
        yield layer, key, value


def _ends(key: TensorMeta) -> Iterator[tuple[OpNode, list[OpNode]]]:
    """Yield the attention operators and softmaxes that read these keys, each with the nodes on the way."""
    left: list[tuple[OpNode, list[OpNode]]] = [(node, []) for node in key._uses]
    seen: set[OpNode] = set()
    while left and len(seen) < _MOST_BETWEEN:
        node, before = left.pop(0)
        if node in seen or not node.outputs:
            continue
        seen.add(node)
        if node.op_type == SDPA or node.op_type in _SOFTMAX:
            yield node, before
        else:
            left += [(reader, [*before, node]) for made in node.outputs for reader in made._uses]


def _masks(layer: int, end: OpNode, between: list[OpNode], fixed: set[TensorMeta], seq: str) -> list[TensorMeta]:
    """Return the masks of an attention; none if the operator itself is causal."""
    if end.op_type == SDPA:
        mask = end["attn_mask"]
        if mask is None and not end["is_causal"]:
            raise GraphError(f"layer {layer}: {end.name!r:.80} has no mask")
        if mask is not None and mask not in fixed:
            raise GraphError(f"layer {layer}: its mask {mask.name!r:.80} depends on inputs; extract without padding")
        return [] if mask is None else [mask]
    read = dict.fromkeys(source for node in between for source in node.inputs if source in fixed)
    masks = [source for source in read if list(source.shape[-2:]) == [seq, seq]]
    if not masks:
        raise GraphError(f"layer {layer}: no mask before {end.name!r:.80}")
    return masks


def _hides(kind: MaskKind, mask: TensorMeta, reader: OpNode, fixed: set[TensorMeta]) -> bool:
    """Whether a node that reads a mask lets it hide the keys that are not seen, and no others."""
    if mask not in reader.inputs or kind.is_uniform:
        return True
    if mask.dtype != "bool":
        return reader.op_type in _ADDING and kind.unseen < kind.seen
    if reader.op_type.startswith("aten.where."):
        chosen = reader["self"]
        return kind.seen is (isinstance(chosen, TensorMeta) and chosen not in fixed)
    return kind.seen is _TRUE_IS_SEEN.get(reader.op_type)


def _scores(end: OpNode, between: list[OpNode]) -> tuple[str, float | None, float | None]:
    """Return the queries, and the factor and the soft cap of the scores."""
    if end.op_type == SDPA:
        return end["query"].name, end["scale"], None
    product = next((node for node in between if node.op_type in _PRODUCTS), None)
    if product is None:
        return "", None, None
    factor, before_tanh = float(product.attrs.get("alpha", 1.0)), None
    for node in between[between.index(product) + 1 :]:
        number = node.attrs.get("other")
        if node.op_type == "aten.tanh.default":
            before_tanh, factor = factor, 1.0
        elif node.op_type in _FACTORS and isinstance(number, (int, float)) and number:
            factor *= float(number) ** _FACTORS[node.op_type]
    query = product.inputs[-2].name
    return (query, factor, None) if before_tanh is None else (query, before_tanh * factor, factor)
