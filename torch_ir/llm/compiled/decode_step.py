"""One step of generation as one graph without outputs: decode, the choice of the next token, and the next position."""

from __future__ import annotations

from torch_ir.errors import ExecutionError
from torch_ir.ir import IR, FunctionRef, OpNode, TensorMeta
from torch_ir.ir.graph.free_names import Names, fresh
from torch_ir.ir.graph.io_tree import call, flat
from torch_ir.ir.regroup.functions import CALL, further_entries, inline_all
from torch_ir.llm.cache_layout import CACHE, decode_graph, keyword_inputs

TOKEN, POSITION = "input_ids", "position"  # further inputs of decode
_CHOICE = "choice"
_SHOWN = 3
_KEY = ".key"  # how the names of keys in a cache end


def check_servable(ir: IR) -> None:
    """Raise ExecutionError if the graphs need other inputs than a prompt, or their cache has no fixed length."""
    decode = decode_graph(ir)
    cache = set(keyword_inputs(decode, CACHE).values())
    names = [tensor.name for tensor in decode.graph_inputs if tensor not in cache]
    if POSITION not in names:
        raise ExecutionError("a model with a cache that grows cannot be compiled; extract it with cache_length")
    other = [name for name in (*names, *further_entries(ir)) if name not in (TOKEN, POSITION, "decode")]
    if other:
        needed = ", ".join([*other[:_SHOWN], *(["..."] if len(other) > _SHOWN else [])])
        raise ExecutionError(f"a model that needs {needed:.200} cannot be compiled; use torch_ir.llm.generate")
    cache_length(decode)


def cache_length(decode: IR) -> int:
    """Return the number of tokens that the cache has room for: keys are [batch, heads, tokens, size]."""
    keys = (tensor for name, tensor in keyword_inputs(decode, CACHE).items() if name.endswith(_KEY))
    first = next(keys, None)
    if first is None:
        raise ExecutionError("a model without attention has no cache of fixed length; use torch_ir.llm.generate")
    return int(first.shape[2])


def prefill_graph(ir: IR) -> IR:
    """Return prefill alone, from the prompt and the cache in place to the logits of the last token."""
    graph = ir.clone()
    for name in further_entries(graph):
        del graph.functions[name]
    read = [param for param in graph.params if param.consumers or param in dict(graph.mutations)]
    graph.params = read
    return graph.check()


def step_graph(decode: IR, choice: IR) -> IR:
    """Return decode followed by the choice of a token; `decode` keeps its cache in place.

    All inputs stay in place: the token and the position become those of the next step, the sequences so far get one
    more token. The inputs are those of decode, then those of the choice after the logits and the place.
    """
    graph = decode.clone()
    taken = Names(tensor.name for tensor in graph.tensors())
    given = {tensor.name: tensor for tensor in graph.graph_inputs}
    logits, position, token = graph.graph_outputs[0], given[POSITION], given[TOKEN]
    place = TensorMeta(fresh("next_position", taken), position.shape, position.dtype)
    following = OpNode(
        place.name, "aten.add.Scalar", [position], [place], args=["self"], attrs={"other": 1, "alpha": 1}
    )
    known = {"logits": logits, "place": place}
    extra = {tensor.name: tensor.copy(fresh(tensor.name, taken)) for tensor in choice.graph_inputs}
    extra = {name: tensor for name, tensor in extra.items() if name not in known}
    chosen = [tensor.copy(fresh(f"chosen_{index}", taken)) for index, tensor in enumerate(choice.graph_outputs)]
    names = [tensor.name for tensor in choice.graph_inputs]
    operands = [{**known, **extra}[name] for name in names]
    function = fresh(_CHOICE, Names(graph.functions))
    node = OpNode(fresh(_CHOICE, taken), CALL, operands, chosen, args=names, attrs={"function": FunctionRef(function)})
    graph.functions[function] = choice.clone()
    graph.graph_inputs += extra.values()
    graph.nodes += [following, node]
    graph.graph_outputs = []
    graph.mutations = [*graph.mutations, (token, chosen[0]), (extra["tokens"], chosen[1]), (position, place)]
    graph.input_tree, graph.output_tree = call(len(graph.graph_inputs)), flat(0)
    inline_all(graph, lambda call: call is node)
    return graph.check()
