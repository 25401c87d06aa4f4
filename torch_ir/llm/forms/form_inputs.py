"""The inputs of a step graph: positions, tables of blocks, the cache; and the sizes that they name."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import count

from torch_ir.errors import GraphError
from torch_ir.ir import IR, Branch, Dim, Slot, Symbol, TensorMeta
from torch_ir.ir.graph.free_names import FreeNames
from torch_ir.ir.graph.io_tree import Tree, with_keywords
from torch_ir.ir.sizes.expressions import names_in
from torch_ir.llm.forms.recognise_attention import CacheAttention
from torch_ir.llm.forms.slot_layouts import ROOM, Paged, Rolling, RollingPaged, Slots, Steps
from torch_ir.llm.forms.storage import Storage

POSITION = "position"  # an input: of the first token of each sequence
_FROM_OUTSIDE = ("attention_mask", "position_ids")  # inputs of prefill that a step computes itself
_NAMED_SIZES = {"slots", "blocks", "table", "window_blocks", "window_table", "outputs", ROOM}
_MOST = 1 << 20  # of sizes without another limit


@dataclass(frozen=True)
class Form:
    """The options of a form; see `to_cache_form`."""

    layout: str
    block_size: int
    rolling: bool
    storage: Storage
    length: int | None  # of the longest sequence; None if positions are not limited

    def layouts(self, steps: Steps, attention: list[CacheAttention]) -> dict[int, Slots]:
        """Return the layout of each layer."""
        shared = Paged(steps, block=self.block_size) if self.layout == "paged" else Slots(steps)
        spans: dict[int, list[int | None]] = {}
        for each in attention:
            spans.setdefault(each.layer, []).append(each.span)
        if not self.rolling:
            return dict.fromkeys(spans, shared)
        windows = {layer: max(span or 0 for span in found) for layer, found in spans.items() if None not in found}
        if not windows:
            raise GraphError("no layer has a sliding window, so that none can keep fewer slots; leave out `rolling`")
        if self.layout == "paged":
            pages = RollingPaged(steps, block=self.block_size, window=max(windows.values()))
            return {layer: pages if layer in windows else shared for layer in spans}
        rolling = {window: Rolling(steps, f"{ROOM} + {window - 1}") for window in set(windows.values())}
        return {layer: rolling[windows[layer]] if layer in windows else shared for layer in spans}


class FormInputs:
    """The new inputs of a graph, by argument name, and its cache, by place."""

    def __init__(self, names: FreeNames, steps: Steps, layouts: Iterable[Slots], has_choice: bool) -> None:
        self._names = names
        self._layouts = {layout.size: layout for layout in layouts}
        self.cache: dict[str, TensorMeta] = {}
        self.arguments = {POSITION: self._tensor(POSITION, (steps.batch,))}
        for layout in self._layouts.values():
            self.arguments |= {name: self._tensor(name, shape) for name, shape in layout.inputs.items()}
        if has_choice:
            self.arguments["logits_at"] = self._tensor("logits_at", (steps.batch, "outputs"))

    def add_layer(self, place: str, entries: TensorMeta, layout: Slots, storage: Storage) -> None:
        """Add the cache of the keys or values of a layer."""
        for suffix, (dtype, size) in storage.parts(entries.dtype, int(entries.shape[3])).items():
            shape = (layout.rows, layout.width, entries.shape[1], size)
            self.cache[place + suffix] = self._tensor(f"cache_{place.replace('.', '_')}{suffix}", shape, dtype)

    def add_to(self, graph: IR, steps: Steps, form: Form) -> None:
        """Make these tensors inputs of a graph, and name their sizes; the number of tokens starts at 1."""
        given = graph.graph_inputs
        if others := [tensor.name for tensor in given if tensor.name in _FROM_OUTSIDE]:
            raise GraphError(f"{others[0]!r} is an input of the graph; extract it without padding and images")
        if taken := sorted(_NAMED_SIZES & graph.symbols.keys()):
            raise GraphError(f"the graph has a size named {taken[0]!r}, which is a size of the form")
        slots = count(len(given))
        arguments: dict[str, Tree] = {name: Slot(next(slots)) for name in self.arguments}
        arguments["cache"] = Branch("dict", tuple(Slot(next(slots)) for _ in self.cache), tuple(self.cache))
        graph.input_tree = with_keywords(graph.input_tree, arguments)
        added = [*self.arguments.values(), *self.cache.values()]
        graph.graph_inputs += added
        seq = steps.seq
        graph.symbols[seq] = replace(graph.symbols[seq], min=1, max=form.length or _MOST)
        several = {f"{seq} > 1", f"{seq} >= 2", f"{seq} != 1"}  # prompts of one token are another case of the model
        graph.constraints[:] = [text for text in graph.constraints if text not in several]
        for tensor in added:
            for dim, size in enumerate(tensor.shape):
                for name in names_in(str(size)) - graph.symbols.keys():
                    most = form.length or _MOST if name in ("slots", ROOM) else _MOST
                    graph.symbols[name] = Symbol(name, 1, most, tensor, dim)
        constraints = [text for layout in self._layouts.values() for text in layout.constraints]
        graph.constraints += dict.fromkeys(constraints)

    def _tensor(self, name: str, shape: tuple[Dim, ...], dtype: str = "int64") -> TensorMeta:
        return TensorMeta(self._names.free(name), shape, dtype)
