"""The entry points of a training step: graphs that compute a part of what one recording returns."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from torch_ir.capture.naming.gradient_places import BACKWARD
from torch_ir.errors import ExportError
from torch_ir.ir import IR, Branch, OpNode, Slot, TensorMeta
from torch_ir.ir.graph.io_tree import Tree
from torch_ir.ir.graph.origins import modules_around
from torch_ir.ops.effects import is_pure
from torch_ir.training.optimizer_binding import RATE
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
    used = {path for module in {node.origin.module for node in ir.nodes} for path in modules_around(module)}
    ir.modules = {path: kind for path, kind in ir.modules.items() if path in used}


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
    updates = [node for node in ir.nodes if _part(node) == OPTIMIZER]
    owners = {param: owner for param in ir.params if (owner := _owner(param)) is not None}
    for node in updates:
        found = {owners[tensor] for tensor in node.inputs if tensor in owners}
        if len(found) == 1:
            owners.update(dict.fromkeys(node.outputs, found.pop()))
    for node in reversed(updates):  # what only one update reads, such as a learning rate with its sign changed
        readers = {owners.get(made) for tensor in node.outputs for user in tensor.consumers for made in user.outputs}
        if len(readers) == 1 and (owner := readers.pop()) is not None:
            owners.update((tensor, owner) for tensor in node.outputs if tensor not in owners)
    for node in updates:
        owner = owners.get(node.outputs[0]) if node.outputs else None
        if owner:
            kind = ir.modules.get(owner, "").rpartition(".")[2]
            node.origin = node.origin._replace(module=f"{OPTIMIZER}.{owner}", module_class=f"{kind}Update")
    for owner in {owner for owner in owners.values() if owner}:
        for path in modules_around(owner)[1:]:
            if path in ir.modules:
                ir.modules[f"{OPTIMIZER}.{path}"] = f"{ir.modules[path]}Update"
    ir.modules = dict(sorted(ir.modules.items()))


def _owner(param: TensorMeta) -> str | None:
    """Return the module of a parameter, or of the parameter whose optimiser state this is."""
    if param.param is None:
        return None
    key = param.key or ""
    if key.startswith(f"{OPTIMIZER}."):
        _, name, key = key.split(".", 2)
        return None if name == RATE and key.isdecimal() else key.rpartition(".")[0]
    return key.rpartition(".")[0] if param.param.kind == "parameter" else None
