"""Hoist computations on weights alone out of function bodies: compute them once per call site, before the call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch_ir.analysis.values.rewrite_context import Knowledge
from torch_ir.ir import IR, FunctionRef, OpNode, TensorMeta
from torch_ir.ir.graph.free_names import FreeNames, Names, fresh, taken_names
from torch_ir.ir.graph.io_tree import call as structure_of_call
from torch_ir.ir.graph.origins import placed_in
from torch_ir.ir.regroup.functions import (
    FUSED,
    STAGE,
    adopt_functions,
    called_by,
    calls_by_function,
    drop_unused,
    origins_in,
    renamed_functions,
)
from torch_ir.passes.pass_registry import named_pass
from torch_ir.rewrite.change_log import current_journal


@named_pass("hoist-from-functions", may_raise=["nodes", "peak"])
def hoist_from_functions(ir: IR) -> int:
    """Move computations on weights alone out of functions, so that they run once.

    Pipeline stages are skipped: each runs as a graph of its own and computes these once there.

    before   function block(x, w) { t = permute(w);  y = mm(x, t) }                      a = block(x, w1)
    after    function block(x, t) {                  y = mm(x, t) }   t1 = permute(w1);  a = block(x, t1)
    """
    count = 0
    for name, calls in calls_by_function(ir).items():
        if not calls[0].op_type.startswith(FUSED):
            count += _Hoisting(ir, ir.functions[name], calls).run()
    return count


def _movable(body: IR) -> list[OpNode]:
    """Return the nodes to move: they depend on weights alone, and neither they nor their producers are returned."""
    know, returned = Knowledge.of(body), set(body.returns.inputs)
    found: list[OpNode] = []
    outside = set(body.graph_inputs)
    for node in body.nodes:
        is_kept = not node.outputs or not returned.isdisjoint(node.outputs) or not outside.issuperset(node.inputs)
        if not is_kept and all(map(know.is_weight, node.outputs)):
            found.append(node)
            outside.update(node.outputs)
    return found


class _Hoisting:
    """One function, its calls, and the nodes that are moved out of it."""

    def __init__(self, ir: IR, body: IR, calls: Sequence[OpNode]) -> None:
        self.ir, self.body, self.calls = ir, body, calls
        self.moved = [] if calls[0].op_type == STAGE else _movable(body)
        staying = {*body.nodes, body.returns}.difference(self.moved)
        made = [tensor for node in self.moved for tensor in node.outputs]
        self.crossing = [tensor for tensor in made if not staying.isdisjoint(tensor._uses)]
        taken = {tensor.name for tensor in body.tensors()}
        self.functions: Mapping[
            str, FunctionRef
        ] = {}  # functions of the body that moved nodes call -> their names outside
        self.inputs = [tensor.copy(fresh(f"{tensor.name}_once", taken)) for tensor in self.crossing]

    def run(self) -> int:
        """Move the nodes and drop unused inputs; return the number of both."""
        if self.moved:
            self._move()
        return len(self.moved) + self._drop_unread()

    def _move(self) -> None:
        names = FreeNames(taken_names(self.ir))
        called = called_by(self.moved)
        self.functions = adopt_functions(self.ir, self.body, called, Names(self.ir.functions))
        before = {call: self._copies(call, names) for call in self.calls}
        self.ir.nodes = [one for node in self.ir.nodes for one in (*before.get(node, ()), node)]
        for tensor, given in zip(self.crossing, self.inputs, strict=True):
            tensor.replace_all_uses_with(given)
        gone = set(self.moved)
        for node in self.moved:
            node.inputs = ()
            current_journal().changed("hoist-from-functions", node.name, node.origins)
        self.body.nodes = [node for node in self.body.nodes if node not in gone]
        drop_unused(self.body, called)
        self.body.graph_inputs += self.inputs
        self.body.input_tree = structure_of_call(len(self.body.graph_inputs))
        Knowledge.of(self.body).assume_weights(self.inputs)

    def _copies(self, call: OpNode, names: FreeNames) -> list[OpNode]:
        """Return copies of the moved nodes for one call, and pass their results to that call."""
        given = dict(zip(call.args, call.inputs, strict=True))
        values: dict[TensorMeta, TensorMeta] = {tensor: given[tensor.name] for tensor in self.body.graph_inputs}
        origins = dict(zip(self.body.nodes, origins_in(call, self.body), strict=True))
        copies = []
        for node in self.moved:
            name = names.free(origins[node][0] if node.origins == (node.name,) else node.name)
            for index, tensor in enumerate(node.outputs):
                values[tensor] = tensor.copy(name if len(node.outputs) == 1 else names.free(f"{name}_{index}"))
            copies.append(node.copy(values.__getitem__, name))
            if self.functions:
                copies[-1].attrs = renamed_functions(node.attrs, self.functions)
            copies[-1].origin, copies[-1].origins = placed_in(call.origin, node.origin), origins.pop(node)
        call.origins = tuple(name for own in origins.values() for name in own) or call.origins
        made = [values[tensor] for tensor in self.crossing]
        call.set_inputs([*call.inputs, *made], [*call.args, *(tensor.name for tensor in self.inputs)])
        return copies

    def _drop_unread(self) -> int:
        """Drop inputs that no node reads any more; return how many."""
        inputs = self.body.graph_inputs
        read = {tensor.name for tensor in inputs if tensor._uses}
        if len(read) < len(inputs):
            self.body.graph_inputs = [tensor for tensor in inputs if tensor.name in read]
            self.body.input_tree = structure_of_call(len(read))
            for call in self.calls:
                kept = [(name, tensor) for name, tensor in zip(call.args, call.inputs, strict=True) if name in read]
                call.set_inputs([tensor for _, tensor in kept], [name for name, _ in kept])
        return len(inputs) - len(read)
