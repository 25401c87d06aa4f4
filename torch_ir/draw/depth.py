"""Collapse modules: everything inside a module at a chosen depth becomes one node.

    depth 1   layer1: Sequential        depth 2   layer1.0: BasicBlock, layer1.1: BasicBlock

Layers above that depth are one node each; operators of the modules above stay as they are, except that many in a row
from one source line, such as those of an attention mask, are one node.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Mapping

from torch_ir.draw.node_texts import LINE
from torch_ir.errors import DrawError
from torch_ir.ir import IR, OpNode, Origin
from torch_ir.ir.graph.origins import call_around, modules_around
from torch_ir.ir.regroup.functions import FUSED, given_by, inline_all
from torch_ir.ir.regroup.granularity import Run, fold_runs, identifier, public_name, read_past, short

LEAST_LINE = 5  # nodes in a row from one source line that become one
Parts = Mapping[str, tuple[OpNode, ...]]  # nodes inside each collapsed module, by its name


def flattened(ir: IR, whole: Collection[str]) -> IR:
    """Return a copy with calls inlined, except fused operators and the calls of these names."""
    copy = ir.clone()
    inline_all(copy, lambda call: not call.op_type.startswith(FUSED) and call.name not in whole)
    return copy


def collapsed(ir: IR, depth: int) -> tuple[IR, Parts]:
    """Return a copy in which each module call at that depth is one node, and the nodes inside each of them."""
    if depth < 1:
        raise DrawError(f"the depth must be at least 1, not {depth}: the model itself would be one box")
    copy = ir.clone()
    copy.symbols = {}  # a drawing does not need where sizes come from
    originals = {node.name: node for node in ir.nodes}
    classes = _classes(ir)
    call_of = _calls_of(copy, depth)
    runs, parts = list[Run](), list[tuple[OpNode, ...]]()
    for (call, source), group in itertools.groupby(copy.nodes, lambda node: _place(node, call_of(node))):
        nodes = list(group)
        if call is None and (not source or len(nodes) < LEAST_LINE):
            continue
        read_past(nodes)
        if given_by(nodes):
            runs.append(_run(nodes, call, source, classes))
            parts.append(tuple(originals[node.name] for node in nodes))
    calls = fold_runs(copy, runs)
    return copy, {call.name: inside for call, inside in zip(calls, parts, strict=True)}


def _place(node: OpNode, call: Origin | None) -> tuple[Origin | None, str]:
    """Return the collapsed module call of a node, or else its source line; calls stay as they are."""
    return call, "" if call is not None or node.is_call else node.origin.source


def _run(nodes: list[OpNode], call: Origin | None, source: str, classes: Mapping[str, str]) -> Run:
    if call is None:
        line = source.replace("\\", "/").rpartition("/")[2]
        return Run(nodes, identifier(line), f"{LINE}{line}", nodes[0].origin)
    op_type = classes.get(call.module, call.module)
    return Run(nodes, identifier(call.module), op_type, call._replace(module_class=short(op_type)))


def depth_of(ir: IR) -> int:
    """Return the depth of the deepest module that computes something, also inside calls."""
    inside = {name: depth_of(body) for name, body in ir.functions.items()}
    return max(
        (_depth(node) + (inside.get(node.attrs["function"], 0) if node.is_call else 0) for node in ir.nodes), default=0
    )


def _depth(node: OpNode) -> int:
    return len(modules_around(node.origin.module)) - 1


def _calls_of(ir: IR, depth: int) -> Callable[[OpNode], Origin | None]:
    """Return a function that maps a node to its collapsed module call; None if the node stays."""
    containers = {path for node in ir.nodes for path in modules_around(node.origin.module)[:-1]}

    def call_of(node: OpNode) -> Origin | None:
        around = modules_around(node.origin.module)
        path = around[min(depth, len(around) - 1)]
        if len(around) <= depth and path in containers:
            return None
        return call_around(node.origin, path)._replace(module_class="", source="", function="")

    return call_of


def _classes(ir: IR) -> dict[str, str]:
    """Return the full class names of modules, from the graph or else from its nodes."""
    from_nodes = {node.origin.module: node.origin.module_class for node in ir.nodes if node.origin.module_class}
    return {path: public_name(name) for path, name in {**from_nodes, **ir.modules}.items()}
