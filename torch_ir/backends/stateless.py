"""Make a graph stateless: buffers that the model changes become inputs and outputs, as do changed inputs."""

from __future__ import annotations

from collections.abc import Iterable

from torch_ir.ir import IR, TensorMeta
from torch_ir.ir.graph.io_tree import call, flat
from torch_ir.run.input_updates import separate_changes


def stateless(ir: IR, shown: Iterable[TensorMeta] = (), *, in_place: bool = False) -> tuple[IR, list[TensorMeta]]:
    """Return a copy that takes mutable buffers after its inputs and returns their new values, and those buffers.

    The buffers are those of the given graph, in the order of the copy's inputs. After the new values, the copy returns
    the tensors in `shown`. With `in_place`, inputs that the model changes stay mutations instead, where that is safe.
    """
    copy = ir.clone()
    by_name = {tensor.name: tensor for tensor in copy.tensors()}
    changing = {target for target, _ in copy.mutations}
    at = [index for index, param in enumerate(copy.params) if param in changing]
    state = [copy.params[index] for index in at]
    copy.params = [param for param in copy.params if param not in changing]
    for tensor in state:
        tensor.param = None
    written = [pair for pair in separate_changes(copy) if in_place and pair[0] not in state]
    new = [value for target, value in copy.mutations if (target, value) not in written]
    results = [*copy.graph_outputs, *new, *(by_name[tensor.name] for tensor in shown)]
    copy.graph_inputs += state
    copy.mutations = written
    copy.graph_outputs = results
    copy.input_tree, copy.output_tree = call(len(copy.graph_inputs)), flat(len(results))
    return copy.check(), [ir.params[index] for index in at]
