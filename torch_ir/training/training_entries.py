"""The entry points of a training step: graphs that compute a part of what one recording returns."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from torch_ir.analysis.dependencies.weight_views import views_where_read
from torch_ir.errors import ExportError
from torch_ir.ir import IR, Branch, OpNode, Slot, TensorMeta
from torch_ir.ir.graph.io_tree import Tree
from torch_ir.ir.graph.origins import modules_around
from torch_ir.ir.graph.training_parts import BACKWARD, EXTENSION, OPTIMIZER, part_of_path, state_owner
from torch_ir.ir.regroup.functions import called_by
from torch_ir.ops.effects import is_pure

FORWARD, STEP = "forward", "step"
_RETURNS = {FORWARD: ("outputs", "loss"), BACKWARD: ("loss", "gradients"), STEP: ("loss", "gradient_norm")}
_PARTS = {FORWARD: (), BACKWARD: (BACKWARD,), STEP: (BACKWARD, OPTIMIZER)}


def entry_points(recorded: IR, facts: Mapping[str, Any], *, in_blocks: bool) -> IR:
    """Return the graph of the step, or of backward if nothing is updated, with the others as its functions.

    `recorded` becomes a part of the result.
    """
    with_owners(recorded)
    views_where_read(recorded)
    names = [FORWARD, BACKWARD, *([STEP] if facts["optimizer"] else [])]
    graphs = {name: _Entry(recorded, name).graph(is_last=name == names[-1]) for name in names}
    if in_blocks:
        graphs = {name: graph.fold_blocks() for name, graph in graphs.items()}
    main = graphs.pop(names[-1])
    for name, graph in (*graphs.items(), (STEP, main)):
        if name != FORWARD:
            graph.extensions[EXTENSION] = dict(facts)
    taken = next((name for name in graphs if name in main.functions), None)
    if taken is not None:
        raise ExportError(f"a layer class of the model is called {taken!r}, like an entry point")
    main.functions.update(graphs)
    return main.check()


class _Entry:
    """Part of a recording that one entry point computes: its nodes, results and changes."""

    def __init__(self, recorded: IR, name: str) -> None:
        self._recorded = recorded
        self._name = name
        assert isinstance(recorded.output_tree, Branch)  # the dict that the step returns
        fields = dict(zip(recorded.output_tree.keys, recorded.output_tree.items, strict=True))
        kept = {key: fields[key] for key in _RETURNS[name] if key in fields}
        outputs: list[TensorMeta] = []
        items = tuple(_taken(item, recorded.graph_outputs, outputs) for item in kept.values())
        self._tree = Branch("dict", items, tuple(kept))
        self._outputs = outputs
        parts = ("", *_PARTS[name])
        later = {tensor for node in recorded.nodes if part_of(node) not in parts for tensor in node.outputs}
        self._mutations = [(target, value) for target, value in recorded.mutations if value not in later]
        sizes = {symbol.tensor for symbol in recorded.symbols.values() if symbol.tensor is not None}
        changed = (value for _, value in self._mutations)
        self._nodes = _needed(recorded.nodes, parts, {*outputs, *changed, *sizes})

    def graph(self, *, is_last: bool) -> IR:
        """Return the graph: a copy, or the recording itself if no other entry point follows."""
        recorded, read = self._recorded, {tensor for node in self._nodes for tensor in node.inputs}
        changed = {target for target, _ in self._mutations}
        params = [param for param in recorded.params if param in read or param in changed or param in self._outputs]
        used = {path for module in {node.origin.module for node in self._nodes} for path in modules_around(module)}
        modules = {path: kind for path, kind in recorded.modules.items() if path in used}
        name = recorded.model_name if self._name == STEP else f"{recorded.model_name}.{self._name}"
        kept = set(self._nodes)
        if is_last:
            for node in recorded.nodes:
                if node not in kept:
                    node.inputs = ()
            recorded.mutations = []
            recorded.graph_outputs, recorded.output_tree = self._outputs, self._tree
            recorded.nodes, recorded.params, recorded.mutations = self._nodes, params, self._mutations
            recorded.modules, recorded.model_name = modules, name
            return recorded
        copies: dict[TensorMeta, TensorMeta] = {}

        def copied(tensor: TensorMeta) -> TensorMeta:
            if tensor not in copies:
                copies[tensor] = tensor.copy()
            return copies[tensor]

        return recorded.replaced(
            nodes=[node.copy(copied) for node in self._nodes],
            graph_inputs=map(copied, recorded.graph_inputs),
            graph_outputs=map(copied, self._outputs),
            params=map(copied, params),
            mutations=[(copied(target), copied(value)) for target, value in self._mutations],
            functions={ref: recorded.functions[ref].clone() for ref in called_by(self._nodes)},
            symbols=[
                replace(symbol, tensor=symbol.tensor and copied(symbol.tensor))
                for symbol in recorded.symbols.values()
                if symbol.tensor is None or symbol.tensor.producer is None or symbol.tensor.producer in kept
            ],
            output_tree=self._tree,
            model_name=name,
            modules=modules,
        )


def _needed(nodes: Sequence[OpNode], parts: Collection[str], wanted: set[TensorMeta]) -> list[OpNode]:
    """Return the nodes of these parts that compute tensors, or that have effects."""
    kept = []
    for node in reversed(nodes):
        if part_of(node) in parts and (not wanted.isdisjoint(node.outputs) or not is_pure(node)):
            kept.append(node)
            wanted.update(node.inputs)
    return kept[::-1]


def _taken(tree: Tree, tensors: Any, found: list[TensorMeta]) -> Tree:
    """Return a part of the output structure, and collect its tensors."""
    if isinstance(tree, Slot):
        found.append(tensors[tree])
        return Slot(len(found) - 1)
    if isinstance(tree, Branch):
        return Branch(tree.kind, tuple(_taken(item, tensors, found) for item in tree.items), tree.keys, tree.type_name)
    return tree


def part_of(node: OpNode) -> str:
    """Return the part of the step that a node belongs to; empty for forward and loss."""
    return part_of_path(node.origin.module)


def with_owners(ir: IR) -> None:
    """Write the module of the updated parameter into the origin of each node of the update."""
    updates = [node for node in ir.nodes if part_of(node) == OPTIMIZER]
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
        owner = state_owner(key)
        return None if owner is None else owner.rpartition(".")[0]
    return key.rpartition(".")[0] if param.param.kind == "parameter" else None
