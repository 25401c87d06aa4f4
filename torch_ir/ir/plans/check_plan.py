"""Check a memory plan: alignment, the size of the banks, lifetimes, and that no two live tensors overlap.

It shares no code with the planner, so that a mistake there is found here.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator

from torch_ir.errors import GraphError
from torch_ir.ir.plans.memory_plan import MemoryPlan, Place


def check_plan(plan: MemoryPlan) -> MemoryPlan:
    """Return the plan; raise GraphError with the first mistake."""
    for message in _mistakes(plan):
        raise GraphError(message, rule="R7")
    return plan


def _mistakes(plan: MemoryPlan) -> Iterator[str]:
    banks = {bank.name: bank for bank in plan.banks}
    names = set()
    for place in plan.places:
        bank = banks[place.bank]
        if (place.name, place.is_scratch) in names:
            yield f"{place.name!r:.80} has two places"
        names.add((place.name, place.is_scratch))
        if not place.first <= place.last < plan.steps:
            yield f"{place.name!r:.80} lives from step {place.first} to {place.last}, of {plan.steps} steps"
        if place.offset % bank.alignment:
            yield f"offset {place.offset} of {place.name!r:.80} is not a multiple of {bank.alignment}"
        if bank.bytes is not None and place.offset + place.bytes > bank.bytes:
            end = place.offset + place.bytes
            yield f"{place.name!r:.80} ends at {end} of bank {bank.name!r:.60}, which has {bank.bytes} bytes"
    for name in banks:
        yield from _overlaps(place for place in plan.places if place.bank == name and place.bytes)


def _overlaps(places: Iterable[Place]) -> Iterator[str]:
    """Go through the steps of one bank with the live tensors sorted by offset: a new one can overlap its neighbours."""
    events = [(step, is_birth, number, place) for number, place in enumerate(places)
              for step, is_birth in ((place.first, True), (place.last + 1, False))]  # fmt: skip
    live: list[tuple[int, int, Place]] = []
    for _, is_birth, number, place in sorted(events, key=lambda event: event[:3]):  # deaths come first
        at = bisect_left(live, (place.offset, number), key=lambda entry: entry[:2])
        if not is_birth:
            del live[at]
            continue
        for other in (entry[2] for entry in live[max(at - 1, 0) : at + 1]):
            if other.offset < place.offset + place.bytes and place.offset < other.offset + other.bytes:
                names = f"{other.name!r:.80} and {place.name!r:.80}"
                yield f"{names} overlap in bank {place.bank!r:.60} at step {place.first}"
                return
        live.insert(at, (place.offset, number, place))
