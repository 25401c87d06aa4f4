"""Plan the memory of a graph, and read the plan that a graph's file contains.

plan = plan_memory(ir, [Bank("sram", 1 << 20, alignment=64), Bank("dram")])
ir.extensions[MemoryPlan.KEY] = plan.to_dict()
memory_plan_of(ir)              # the plan, checked; GraphError if the graph has changed since
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch_ir.analysis.memory_plan.buffers import Buffer, count_overlaps, overlapping
from torch_ir.analysis.memory_plan.first_fit import in_time_order, lowest_gap, top_of
from torch_ir.analysis.memory_plan.lifetimes import Lifetime, lifetimes
from torch_ir.analysis.memory_plan.pack_buffers import EFFORT, MANY_PAIRS, pack
from torch_ir.errors import DeviceError, GraphError
from torch_ir.ir import IR
from torch_ir.ir.graph.given_graph import require_graph
from torch_ir.ir.plans.check_plan import check_plan
from torch_ir.ir.plans.memory_plan import Bank, MemoryPlan, Place
from torch_ir.ir.text.amounts import plural

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
    places = _assign_banks(lives, banks, effort)
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


def _assign_banks(lives: Sequence[Lifetime], banks: Sequence[Bank], effort: int) -> list[Place]:
    """Return the place of each tensor; raise DeviceError if the last bank is too small for what is left.

    The first bank has what is used most per byte and step, the rest spills to the next. A tensor stays in one bank for
    its whole life. The last bank takes everything that is left.
    """
    places: dict[int, Place] = {}
    left = list(range(len(lives)))
    for number, bank in enumerate(banks):
        found = _in_bank([lives[index] for index in left], bank, effort, number == len(banks) - 1)
        for at, offset in found.items():
            life = lives[left[at]]
            numbers = (offset * bank.alignment, life.bytes, life.first, life.last, life.is_scratch)
            places[left[at]] = Place(life.name, bank.name, *numbers)
        left = [index for index in left if index not in places]
    return [places[index] for index in range(len(lives))]


def _in_bank(lives: Sequence[Lifetime], bank: Bank, effort: int, is_last: bool) -> dict[int, int]:
    """Return the offsets, in units of the alignment, of the lives that get a place in this bank, by their number."""
    buffers = [Buffer(life.first, life.last + 1, -(-life.bytes // bank.alignment)) for life in lives]
    if bank.bytes is None:
        return dict(enumerate(pack(buffers, effort=effort)))
    capacity = bank.bytes // bank.alignment
    found = pack(buffers, capacity, effort)
    if (top := top_of(buffers, found)) <= capacity:
        return dict(enumerate(found))
    if is_last:
        needs = f"{plural(top * bank.alignment, 'byte')}, {plural(len(lives), 'tensor')}"
        has = f"bank {bank.name!r:.60} has {plural(bank.bytes, 'byte')}"
        raise DeviceError(f"{has}, but needs {needs}; add a bank for the rest")
    return _most_used(lives, buffers, capacity)


def _most_used(lives: Sequence[Lifetime], buffers: Sequence[Buffer], capacity: int) -> dict[int, int]:
    """Place the buffers with the most uses for each step first, while they fit; of equals, the larger ones.

    Of very many that live at the same time, those stay whose place in the order of time is within the capacity.
    """
    if count_overlaps(buffers) > MANY_PAIRS:
        placed = enumerate(in_time_order(buffers))
        return {index: offset for index, offset in placed if offset + buffers[index].size <= capacity}
    overlaps = overlapping(buffers)
    offsets: list[int | None] = [None] * len(buffers)
    order = sorted(
        range(len(lives)),
        key=lambda index: (-lives[index].uses / (buffers[index].end - buffers[index].start), -buffers[index].size),
    )
    for index in order:
        offset = lowest_gap(buffers, index, overlaps[index], offsets)
        if offset + buffers[index].size <= capacity:
            offsets[index] = offset
    return {index: offset for index, offset in enumerate(offsets) if offset is not None}
