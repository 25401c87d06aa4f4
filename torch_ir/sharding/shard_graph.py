"""Shard a graph: the same operators on shards, with collectives between them.

before   linear: float32[2, 32] = aten.linear.default(input=x, weight=w, bias=None)
after    linear: float32[2, 32] on partial(sum) = aten.linear.default(input=x, weight=w, bias=None)
         all_reduce = _c10d_functional.all_reduce.default(input=linear, reduce_op='sum', group_name='tp')
         wait_tensor: float32[2, 32] on replicate = _c10d_functional.wait_tensor.default(tensor=all_reduce)

All ranks run the same graph. Neither weights nor a process group are needed. Further entry points of a file, such as
decode beside prefill, are sharded in the same way.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from torch_ir.errors import ShardError
from torch_ir.ir import IR, TensorMeta
from torch_ir.ir.graph.given_graph import require_graph
from torch_ir.ir.graph.name_grammar import is_symbol
from torch_ir.ir.graph.training_parts import state_owner
from torch_ir.ir.regroup.functions import further_entries
from torch_ir.ir.regroup.separate_stacks import without_stacks
from torch_ir.ops.schema import name_arguments
from torch_ir.sharding.entry_placements import Ends, gradients_of
from torch_ir.sharding.rank_graph import OUTSIDE, RankGraph, Sharding
from torch_ir.sharding.sharding_plan import Plan


def shard(
    ir: IR,
    plan: Mapping[str, Any],
    mesh: Mapping[str, int],
    *,
    inputs: Mapping[str, str] | None = None,
    outputs: Mapping[str, str] | None = None,
) -> IR:
    """Return the graph that every rank runs, by a plan: `shard(ir, {"layers.*.up": "colwise"}, {"tp": 8})`.

    For a mesh of several axes, shard the result along the next axis. Inputs and outputs of the model are replicated
    unless `inputs` and `outputs`, by name with `*`, give a placement such as `shard(0)`. Further entry points are
    sharded too; values they take from others under the same name, such as caches, keep their producer's placement.
    """
    require_graph(ir, "shard")
    axis, ranks = _axis_of(ir, mesh)
    ir = without_stacks(ir).clone()
    for node in ir.all_nodes():
        name_arguments(node)
    return _entry(ir, Plan(plan, ir), axis, ranks, Ends(ir, inputs or {}, outputs or {}), ir.mesh).check()


def _axis_of(ir: IR, mesh: Mapping[str, int]) -> tuple[str, int]:
    """Return the new axis and its size."""
    if len(mesh) != 1:
        raise ShardError(f"expected one mesh axis, not {len(mesh)}; shard the result along the next axis")
    (axis, ranks), *_ = mesh.items()
    if not is_symbol(axis):
        raise ShardError(f"invalid name {axis!r:.80} of a mesh axis; expected letters, digits and _, such as tp")
    if type(ranks) is not int or ranks < 1:
        raise ShardError(f"mesh axis {axis!r:.80} must have at least 1 rank, not {ranks!r:.80}")
    if axis in ir.mesh:
        raise ShardError(f"the graph is already sharded along {axis!r}")
    return axis, ranks


def _give_weights(graph: RankGraph, params: Sequence[TensorMeta]) -> None:
    """Place weights by the plan, and state of an optimiser like its parameters."""
    by_key = {key: param for param in params if param.param for key in param.param.keys}
    state = {param: owner for param in params if (owner := by_key.get(state_owner(param.key or "") or ""))}
    for param in params:
        if param not in state:
            graph.give_weight(param)
    for param, owner in state.items():
        graph.give_state(param, owner)


def _entry(ir: IR, plan: Plan, axis: str, ranks: int, ends: Ends, mesh: Mapping[str, int]) -> IR:
    """Shard one entry point and its further entry points; `mesh` is that of the whole file."""
    graph = RankGraph(Sharding(ir, plan, axis, ranks, len(mesh)), ir, "", is_function=False)
    for tensor, place in zip(ir.graph_inputs, ends.of_inputs(ir), strict=True):
        graph.give(tensor, place, OUTSIDE, f"input {tensor.name!r}")
    _give_weights(graph, ir.params)
    by_key = {param.key: param for param in ir.params}
    gradients = {tensor: graph.home[by_key[key]] for key, tensor in gradients_of(ir).items() if key in by_key}
    graph.reduced = gradients
    graph.run()
    places = ends.of_outputs(ir, graph.given_as)
    made = [
        graph.read(tensor, gradients.get(tensor, place)) for tensor, place in zip(ir.graph_outputs, places, strict=True)
    ]
    changed = [(graph.local(target), graph.read(value, graph.home[target])) for target, value in ir.mutations]
    number = [] if graph.writer.rank is None else [graph.writer.rank]
    others = {name: _entry(body, plan, axis, ranks, ends, mesh) for name, body in further_entries(ir).items()}
    return ir.replaced(
        nodes=graph.writer.nodes,
        graph_inputs=map(graph.local, ir.graph_inputs),
        graph_outputs=made,
        params=[*map(graph.local, ir.params), *number],
        mutations=changed,
        functions={**graph.functions, **others},
        symbols=[replace(s, tensor=graph.local(s.tensor) if s.tensor else None) for s in ir.symbols.values()],
        mesh={**mesh, axis: ranks},
    )
