"""Guards for back ends that do not run them: split off as a graph of their own, which the executor runs first."""

from __future__ import annotations

from torch_ir.analysis.dependencies.slices import sizes_of
from torch_ir.errors import ExecutionError
from torch_ir.ir import IR, OpNode, TensorMeta
from torch_ir.ir.graph.io_tree import flat
from torch_ir.ir.regroup.functions import called_by
from torch_ir.ops.effects import is_random
from torch_ir.ops.guards import is_check
from torch_ir.ops.prepare_run import with_calls_inline
from torch_ir.passes.clean.dead_code import dead_code
from torch_ir.targets.node_summary import describe


def split_guards(ir: IR) -> tuple[IR, IR | None]:
    """Return the graph without its checks, and one with the checks and what they read; None if there are no checks.

    before   a = neg(x);  decision(a);  b = relu(x);  return b
    after    b = relu(x);  return b         and         a = neg(x);  decision(a);  return
    """
    if not any(map(is_check, ir.all_nodes())):
        return ir, None
    rest = ir.clone()
    for graph in rest.all_graphs():
        graph.erase([*filter(is_check, graph.nodes)])
    dead_code(rest)
    return rest.check(), _checks(ir)


def _checks(ir: IR) -> IR:
    """Return a graph that runs the checks; branches and loops that contain some are kept whole."""
    checks = with_calls_inline(ir).clone()
    checks.graph_outputs, checks.mutations, checks.output_tree = [*checks.tensors()][:1], [], flat(1)  # not nothing
    needed, kept = set[TensorMeta | None](), list[OpNode]()
    for node in reversed(checks.nodes):
        bodies = [checks.functions[name] for name in called_by([node])]
        inside = [node, *(inner for body in bodies for inner in body.all_nodes())]
        if needed.isdisjoint(node.outputs) and not any(map(is_check, inside)):
            continue
        if drawn := next(filter(is_random, inside), None):
            raise ExecutionError(f"a guard depends on random numbers: {describe(drawn)}; use the back end torch")
        named = sizes_of([node], (), bodies)
        needed.update(node.inputs, (symbol.tensor for name, symbol in checks.symbols.items() if name in named))
        kept.append(node)
    for node in set(checks.nodes).difference(kept):
        node.inputs = ()
    checks.nodes = kept[::-1]
    known = {None, *checks.graph_inputs, *(tensor for node in kept for tensor in node.outputs)}
    checks.symbols = {name: symbol for name, symbol in checks.symbols.items() if symbol.tensor in known}
    return checks.check()
