"""Find the nodes of module and torch function calls in a graph of operators, and fold each call into one node."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from torch_ir.errors import GraphError
from torch_ir.ir import IR, OpNode, Origin
from torch_ir.ir.graph.origins import call_around, modules_around
from torch_ir.ir.regroup.functions import given_by, holds_modules
from torch_ir.ir.regroup.granularity import Run, fold, fold_runs, is_passed_on, public_name, read_past

Calls = dict[Origin, list[OpNode]]


def calls_of(ir: IR, is_wanted: Callable[[str], bool]) -> Calls:
    """Return the nodes of every call of a wanted module class or recorded torch function."""
    wanted = {path for path, name in ir.modules.items() if is_wanted(public_name(name))}
    calls: Calls = {}
    for node in ir.nodes:
        for path in wanted.intersection(modules_around(node.origin.module)) if wanted else ():
            call = call_around(node.origin, path)._replace(source="", module_class="", function="")
            calls.setdefault(call, []).append(node)
        if node.origin.function and not node.is_call and is_wanted(_function(node.origin)):
            calls.setdefault(node.origin._replace(source="", module_class=""), []).append(node)
    return calls


def depth(call: Origin) -> tuple[bool, int]:
    """Return a sort key: modules before functions, outer before inner; calls of equal depth share no node."""
    return bool(call.function), len(modules_around(call.module))


def name_of(ir: IR, call: Origin) -> str:
    """Return the public name of the called class or function."""
    return _function(call) if call.function else public_name(ir.modules[call.module])


def is_whole_block(ir: IR, node: OpNode, is_wanted: Callable[[str], bool]) -> bool:
    """Whether a node already is what folding a wanted module with inner modules would produce.

    That requires that no enclosing module is wanted, that all its outputs are used, and that none is a cast which
    consumers can bypass.
    """
    if not node.is_call or not node.is_layer or not is_wanted(node.op_type):
        return False
    body = ir.functions[node.attrs["function"]]
    around = (public_name(ir.modules.get(path, "")) for path in modules_around(node.origin.module)[:-1])
    return (
        holds_modules(body)
        and not any(map(is_wanted, around))
        and all(tensor._uses for tensor in node.outputs)
        and not any(is_passed_on(tensor) for tensor in body.graph_outputs)
    )


def fold_calls(ir: IR, calls: Mapping[Origin, list[OpNode]]) -> dict[Origin, OpNode | str]:
    """Replace each call by one node, or return why that is impossible; no two calls share a node."""
    for nodes in calls.values():
        read_past(nodes)
    position = {node: number for number, node in enumerate(ir.nodes)}
    bound = {symbol.tensor for symbol in ir.symbols.values()}

    def is_run(nodes: list[OpNode]) -> bool:
        """Whether nodes are consecutive and bind no symbols; others are folded one call at a time."""
        follow = position[nodes[-1]] - position[nodes[0]] == len(nodes) - 1
        return follow and bool(given_by(nodes)) and all(bound.isdisjoint(node.outputs) for node in nodes)

    runs = {
        call: Run(nodes, _label(ir, call), name_of(ir, call), call._replace(source=nodes[-1].origin.source))
        for call, nodes in sorted(calls.items(), key=lambda item: position[item[1][0]])
        if is_run(nodes)
    }
    folded: dict[Origin, OpNode | str] = dict(zip(runs, fold_runs(ir, runs.values()), strict=True))
    for call in calls.keys() - runs.keys():
        try:
            folded[call] = fold(ir, calls[call], _label(ir, call), name_of(ir, call))
        except GraphError as error:
            folded[call] = f"{name_of(ir, call)}: {error}"
    return folded


def _function(origin: Origin) -> str:
    return origin.function.rpartition("@")[0]


def _label(ir: IR, call: Origin) -> str:
    """Return a name for the node: the module path, or the last part of the function name."""
    name = name_of(ir, call)
    return name.rpartition(".")[2] if call.function else call.module.replace(".", "_") or name
