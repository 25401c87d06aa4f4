"""Plan the memory of a graph, and read the plan that a graph's file contains.

plan = plan_memory(ir, [Bank("sram", 1 << 20, alignment=64), Bank("dram")])
ir.extensions[MemoryPlan.KEY] = plan.to_dict()
memory_plan_of(ir)              # the plan, checked; GraphError if the graph has changed since
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch_ir.analysis.memory_plan.assign_banks import assign_banks
from torch_ir.analysis.memory_plan.lifetimes import lifetimes
from torch_ir.analysis.memory_plan.pack_buffers import EFFORT
from torch_ir.errors import DeviceError, GraphError
from torch_ir.ir import IR
from torch_ir.ir.graph.given_graph import require_graph
from torch_ir.ir.plans.check_plan import check_plan
from torch_ir.ir.plans.memory_plan import Bank, MemoryPlan

ONE_ARENA = (Bank("arena"),)


def plan_memory(
    ir: IR, banks: Sequence[Bank] = ONE_ARENA, sizes: Mapping[str, int] | None = None, *, effort: int = EFFORT
) -> MemoryPlan:
    """Return an offset for every tensor that a run computes, for the nodes in program order.

    Inputs, weights and what is computed once from weights are not planned, as in `liveness`. Tensors that do not fit
    in a bank spill to the next one. `effort` is the number of searches for a smaller arena. The plan is checked.
    """
    require_graph(ir, "plan_memory")
    if not banks or len({bank.name for bank in banks}) < len(banks):
        raise DeviceError("a plan needs at least one bank, and a different name for each")
    memory, lives = lifetimes(ir, sizes or {})
    places = assign_banks(lives, banks, effort)
    return check_plan(MemoryPlan(tuple(banks), tuple(places), len(memory.steps), int(memory.peak), dict(sizes or {})))


def memory_plan_of(ir: IR) -> MemoryPlan | None:
    """Return the plan in a graph's extensions; None if there is none.

    Raise SerializationError if it cannot be read, and GraphError if it is wrong, or is not a plan for this graph.
    """
    record = ir.extensions.get(MemoryPlan.KEY)
    if record is None:
        return None
    plan = check_plan(MemoryPlan.from_dict(record, f"$.extensions.{MemoryPlan.KEY}"))
    memory, lives = lifetimes(ir, plan.sizes)
    own = {(life.name, life.is_scratch): (life.bytes, life.first, life.last) for life in lives}
    planned = {(place.name, place.is_scratch): (place.bytes, place.first, place.last) for place in plan.places}
    if own != planned or (plan.steps, plan.peak) != (len(memory.steps), memory.peak):
        name = next((key[0] for key in [*own, *planned] if own.get(key) != planned.get(key)), "")
        where = f" at {name!r:.80}" if name else ""
        raise GraphError(
            f"the memory plan is for another graph: it differs{where}; the graph was changed, plan it again"
        )
    return plan
