"""Many small graphs as one, so that a back end compiles once for all of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from torch_ir import IR
from torch_ir.ir import TensorMeta


def merged(graphs: Sequence[IR]) -> IR:
    """Return a graph with the inputs of all graphs in order, and all of their outputs in order.

    Symbols of one name are one symbol: sizes under that name must be equal in a run.
    """
    nodes, inputs, params, outputs, mutations, symbols = [], [], [], [], [], {}
    for number, graph in enumerate(graphs):
        here: dict[TensorMeta, TensorMeta] = {}

        def copied(tensor: TensorMeta, here: dict[TensorMeta, TensorMeta] = here, number: int = number) -> TensorMeta:
            if tensor not in here:
                keys = (f"c{number}_{tensor.name}",)
                param = tensor.param and replace(tensor.param, keys=keys)
                here[tensor] = TensorMeta(keys[0], tensor.shape, tensor.dtype, stride=tensor.stride, param=param)
            return here[tensor]

        inputs += [copied(tensor) for tensor in graph.graph_inputs]
        params += [copied(tensor) for tensor in graph.params]
        for node in graph.nodes:
            for tensor in node.outputs:
                copied(tensor)
            nodes.append(node.copy(copied, f"c{number}_{node.name}"))
        outputs += [here[tensor] for tensor in graph.graph_outputs]
        mutations += [(here[target], here[value]) for target, value in graph.mutations]
        for name, symbol in graph.symbols.items():
            if name not in symbols and symbol.tensor is not None:
                symbols[name] = type(symbol)(name, symbol.min, symbol.max, here[symbol.tensor], symbol.dim)
    return IR(nodes, inputs, outputs, params=params, mutations=mutations, symbols=list(symbols.values())).check()
