"""One graph for every step of a language model: k tokens of each sequence, at its position, over a cache.

With one token it decodes, with several it reads a chunk of a prompt or verifies a draft. Sequences of a batch may have
different lengths.
"""

from __future__ import annotations

from typing import Any

import torch

from torch_ir.entries.entry_feeds import EXTENSION
from torch_ir.errors import GraphError
from torch_ir.ir import IR, TensorMeta, evaluate
from torch_ir.ir.checks.work import bounded
from torch_ir.ir.regroup.functions import called_by, inline_all
from torch_ir.ir.sizes.expressions import names_in
from torch_ir.llm.cache_layout import DECODE, keyword_inputs
from torch_ir.llm.forms.form_inputs import POSITION, Form
from torch_ir.llm.forms.growing_cache import growing
from torch_ir.llm.forms.recognise_attention import cache_attention, token_sizes
from torch_ir.llm.forms.step_writer import StepWriter
from torch_ir.llm.forms.storage import STORAGES
from torch_ir.ops.neutral_state import neutral
from torch_ir.ops.schema import name_arguments
from torch_ir.ops.torch_types import TORCH_DTYPES

LAYOUTS = ("slots", "paged")
_FAR = 1 << 19  # a limit of positions above this is none


@neutral
@bounded
def to_cache_form(
    ir: IR,
    layout: str = "slots",
    *,
    block_size: int = 16,
    rolling: bool = False,
    cache_dtype: str | None = None,
    max_length: int | None = None,
) -> IR:
    """Return one graph for every step of a language model: k tokens of each sequence at its own position.

    `ir` is a graph of `extract_llm` without `padding`; if its cache has a fixed length, that is the limit of positions.
    Inputs are `input_ids` [batch, seq], `position` [batch], the position of the first of these tokens in each sequence,
    and the cache. With the layout `slots`, a cache tensor is [batch, slots, heads, size]; with `paged`, [blocks,
    block_size, heads, size], and `block_tables` [batch, table] and `slot_mapping` [batch, seq] are inputs. With
    `rolling`, layers with a sliding window have as many slots as the window, less one, and `room`, the most tokens of a
    step; if paged, they have `window_tables` and `window_mapping` of their own, and use their blocks in turn.
    `cache_dtype` is `int8` or `float8_e4m3fn`, with one scale for each token and head, or None for the model's own.
    `logits_at` [batch, outputs] chooses the tokens whose logits are returned, unless `ir` returns all. Positions are
    below `max_length`, by default the model's limit.
    """
    if layout not in LAYOUTS:
        raise GraphError(f"unknown layout {layout!r:.40}; expected one of {', '.join(LAYOUTS)}")
    if cache_dtype not in STORAGES:
        raise GraphError(
            f"unknown cache_dtype {cache_dtype!r:.40}; expected one of {', '.join(filter(None, STORAGES))}"
        )
    if block_size < 1:
        raise GraphError(f"block_size must be at least 1, not {block_size}")
    length = _length(ir, max_length)
    graph = ir.clone()
    inline_all(graph)
    for node in graph.nodes:
        name_arguments(node)
    graph = growing(graph, *token_sizes(graph))
    attention = cache_attention(graph)
    called = set(called_by(graph.nodes))
    graph.functions = {name: body for name, body in graph.functions.items() if name in called}
    StepWriter(graph, attention, Form(layout, block_size, rolling, STORAGES[cache_dtype], length)).write()
    graph.extensions.pop(EXTENSION, None)  # the map of prefill and decode
    return graph.check()


def is_form(ir: IR) -> bool:
    """Whether a graph is one of `to_cache_form`."""
    return any(tensor.name == POSITION for tensor in ir.graph_inputs) and bool(keyword_inputs(ir, "cache"))


@neutral
def empty_cache(ir: IR, **sizes: int) -> dict[str, torch.Tensor]:
    """Return an empty cache for a graph of `to_cache_form`: `empty_cache(ir, batch=2, slots=64)`."""
    if not is_form(ir):
        raise GraphError(f"{ir!r} is not a step over a cache; make such a graph with torch_ir.llm.to_cache_form")
    return {place: _zeros(tensor, sizes) for place, tensor in keyword_inputs(ir, "cache").items()}


def _zeros(tensor: TensorMeta, sizes: dict[str, Any]) -> torch.Tensor:
    if missing := sorted(name for size in tensor.shape for name in names_in(str(size)) - sizes.keys()):
        raise GraphError(f"the cache has the size {missing[0]!r}; pass it, as in empty_cache(ir, {missing[0]}=64)")
    return torch.zeros([int(evaluate(size, sizes)) for size in tensor.shape], dtype=TORCH_DTYPES[tensor.dtype])


def _length(ir: IR, wanted: int | None) -> int | None:
    """Return the number of positions: the model's limit or less; None if it has none."""
    _, seq = token_sizes(ir)
    limits = [ir.symbols[seq].max]
    if DECODE in ir.functions and (past := ir.functions[DECODE].symbols.get("past")) is not None:
        limits.append(past.max)
    known = max((limit + 1 for limit in limits if limit is not None and limit < _FAR), default=None)
    if wanted is not None and (wanted < 1 or wanted > (known or _FAR)):
        raise GraphError(f"max_length must be between 1 and {known or _FAR}, not {wanted}")
    return known if wanted is None else wanted
