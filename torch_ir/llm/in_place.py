"""Keep the cache of a language model in place: what each step returns becomes a change of its inputs."""

from __future__ import annotations

from torch_ir.analysis.memory.aliasing import memory_of
from torch_ir.errors import ExportError
from torch_ir.ir import IR, Branch, Slot, TensorMeta
from torch_ir.ir.graph.free_names import Names, fresh
from torch_ir.ir.graph.io_tree import with_keywords
from torch_ir.llm.cache_layout import CACHE, DECODE, cache_outputs, decode_graph, keyword_inputs


def cache_in_place(ir: IR) -> IR:
    """Return a copy in which prefill and decode change their cache inputs instead of returning new ones.

    The cache is an input of prefill, too, which overwrites all of it. The pairs are `mutations` of both graphs: back
    ends that update inputs in place need no copy of the cache. Raise ExportError if a tensor cannot stay in one buffer:
    its size changes from step to step, or its new value is a view of another one.
    """
    decode = decode_graph(ir)
    given = keyword_inputs(decode, CACHE)
    for name, old in given.items():
        new = cache_outputs(decode).get(name, old)
        if (old.shape, old.dtype) != (new.shape, new.dtype):
            raise ExportError(
                f"cache tensor {name!r} grows from {_shown(old)} to {_shown(new)} with every token and cannot be kept "
                "in place; extract the model with cache_length"
            )
        memory = memory_of(new, decode.functions)
        if new is not old and (memory is None or not memory.isdisjoint(set(given.values()) - {old})):
            raise ExportError(f"the new value of cache tensor {name!r} is a view of another one, so it needs a buffer")
    copy = ir.clone()
    copy.functions[DECODE] = _with_changes(copy.functions[DECODE], {})
    return _with_changes(copy, given).check()


def _with_changes(ir: IR, missing: dict[str, TensorMeta]) -> IR:
    """Turn the cache outputs of a graph into changes of its cache inputs; those in `missing` become inputs first."""
    made = cache_outputs(ir)
    taken = Names(tensor.name for tensor in ir.tensors())
    given = keyword_inputs(ir, CACHE)
    for name, like in missing.items():
        given[name] = made[name].copy(fresh(like.name, taken))
        given[name].stride = None
        ir.graph_inputs.append(given[name])
    if missing:
        places = {tensor: place for place, tensor in enumerate(ir.graph_inputs)}
        slots = tuple(Slot(places[tensor]) for tensor in given.values())
        ir.input_tree = with_keywords(ir.input_tree, {CACHE: Branch("dict", slots, tuple(given))})
    changes = [(given[name], value) for name, value in made.items() if given[name] is not value]
    tree = ir.output_tree
    assert isinstance(tree, Branch)  # extract_llm returns a dict
    kept = [(key, item) for key, item in zip(tree.keys, tree.items, strict=True) if key != CACHE]
    outputs = ir.graph_outputs
    ir.graph_outputs = [outputs[item] for _, item in kept if isinstance(item, Slot)]
    ir.output_tree = Branch("dict", tuple(map(Slot, range(len(kept)))), tuple(key for key, _ in kept))
    ir.mutations = list({**dict(ir.mutations), **dict(changes)}.items())  # decode may write to a state already
    return ir.check()


def _shown(tensor: TensorMeta) -> str:
    return f"{tensor.dtype}[{', '.join(map(str, tensor.shape))}]"
