"""Assign buffers to banks: the first bank has what is used most per byte and step, the rest spills to the next.

A tensor stays in one bank for its whole life. The last bank takes everything that is left.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch_ir.analysis.cost_model.table_text import plural
from torch_ir.analysis.memory_plan.buffers import Buffer, count_overlaps, overlapping
from torch_ir.analysis.memory_plan.first_fit import in_time_order, lowest_gap, top_of
from torch_ir.analysis.memory_plan.lifetimes import Lifetime
from torch_ir.analysis.memory_plan.pack_buffers import MANY_PAIRS, pack
from torch_ir.errors import DeviceError
from torch_ir.ir.plans.memory_plan import Bank, Place


def assign_banks(lives: Sequence[Lifetime], banks: Sequence[Bank], effort: int) -> list[Place]:
    """Return the place of each tensor; raise DeviceError if the last bank is too small for what is left."""
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
