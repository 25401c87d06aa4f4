"""The entry points of a training step: graphs that compute a part of what one recording returns."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from torch_ir.capture.naming.gradient_places import BACKWARD
from torch_ir.errors import ExportError
from torch_ir.ir import IR, Branch, OpNode, Slot, TensorMeta
from torch_ir.ir.graph.io_tree import Tree
from torch_ir.ir.graph.origins import is_below
from torch_ir.ops.effects import is_pure
from torch_ir.training.training_step import OPTIMIZER

FORWARD, STEP = "forward", "step"
_RETURNS = {FORWARD: ("outputs", "loss"), BACKWARD: ("loss", "gradients"), STEP: ("loss", "gradient_norm")}
_PARTS = {FORWARD: (), BACKWARD: (BACKWARD,), STEP: (BACKWARD, OPTIMIZER)}


def entry_points(recorded: IR, facts: Mapping[str, Any], *, in_blocks: bool) -> IR:
    """Return the graph of the step, or of backward if nothing is updated, with the others as its functions."""
    with_owners(recorded)
    names = [FORWARD, BACKWARD, *([STEP] if facts["optimizer"] else [])]
    graphs = {name: entry_point(recorded, name) for name in names}
    if in_blocks:
        graphs = {name: graph.fold_blocks() for name, graph in graphs.items()}
    main = graphs.pop(names[-1])
    main.extensions["training"] = dict(facts)
    taken = next((name for name in graphs if name in main.functions), None)
    if taken is not None:
        raise ExportError(f"a layer class of the model is called {taken!r}, like an entry point")
    main.functions.update(graphs)
    return main.check()


def entry_point(recorded: IR, name: str) -> IR:
    """Return a copy that computes only what an entry point returns and changes."""
    ir = recorded.clone()
    assert isinstance(ir.output_tree, Branch)  # the dict that the step returns
    fields = dict(zip(ir.output_tree.keys, ir.output_tree.items, strict=True))
    kept = {key: fields[key] for key in _RETURNS[name] if key in fields}
    outputs: list[TensorMeta] = []
    tree = Branch("dict", tuple(_taken(item, ir.graph_outputs, outputs) for item in kept.values()), tuple(kept))
    later = {node for node in ir.nodes if _part(node) not in ("", *_PARTS[name])}
    made = {tensor for node in later for tensor in node.outputs}
    mutations = [(target, value) for target, value in ir.mutations if value not in made]
    ir.mutations = []
    ir.graph_outputs, ir.output_tree = outputs, tree
    ir.mutations = mutations
    _keep(ir, later)
    if name != STEP:
        ir.model_name = f"{ir.model_name}.{name}"
    return ir


def _keep(ir: IR, dropped: Collection[OpNode]) -> None:
    """Drop these nodes, those that only they need, and weights that no node reads."""
    kept = []
    for node in reversed(ir.nodes):
        if node in dropped or (is_pure(node) and not any(tensor.consumers for tensor in node.outputs)):
            node.inputs = ()
        else:
            kept.append(node)
    ir.nodes = kept[::-1]
    changed = {target for target, _ in ir.mutations}
    ir.params = [param for param in ir.params if param.consumers or param in changed]
    used = {node.origin.module for node in ir.nodes}
    ir.modules = {path: kind for path, kind in ir.modules.items() if any(path == at or is_below(at, path) for at in used)}


def _taken(tree: Tree, tensors: Any, found: list[TensorMeta]) -> Tree:
    """Return a part of the output structure, and collect its tensors."""
    if isinstance(tree, Slot):
        found.append(tensors[tree])
        return Slot(len(found) - 1)
    if isinstance(tree, Branch):
        return Branch(tree.kind, tuple(_taken(item, tensors, found) for item in tree.items), tree.keys, tree.type_name)
    return tree


def _part(node: OpNode) -> str:
    """Return the part of the step that a node belongs to; empty for forward and loss."""
    first = node.origin.module.partition(".")[0]
    return first if first in (BACKWARD, OPTIMIZER) else ""


def with_owners(ir: IR) -> None:
    """Write the module of the updated parameter into the origin of each node of the update."""
    owners: dict[TensorMeta, str] = {}
    for param in ir.params:
        key = param.key or ""
        if key.startswith(f"{OPTIMIZER}."):
            key = key.split(".", 2)[2] if key.count(".") > 1 else ""
        if param.param is not None and (param.param.kind == "parameter" or param.key != key):
            owners[param] = key.rpartition(".")[0]
    for node in ir.nodes:
        if _part(node) != OPTIMIZER:
            continue
        found = {owners[tensor] for tensor in node.inputs if tensor in owners}
        if len(found) == 1:
            owner = found.pop()
            owners.update(dict.fromkeys(node.outputs, owner))
            if owner in ir.modules or not owner:
                kind = ir.modules.get(owner, "")
                path = f"{OPTIMIZER}.{owner}" if owner else OPTIMIZER
                node.origin = node.origin._replace(module=path, module_class=f"{kind.rpartition('.')[2]}Update")
                ir.modules[path] = f"{kind}Update"
