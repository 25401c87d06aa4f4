"""Text and record of a memory plan: a row per bank, and how near the arena is to the live peak."""

from __future__ import annotations

from typing import Any

from torch_ir.ir.plans.memory_plan import MemoryPlan
from torch_ir.ir.text.amounts import human, plural
from torch_ir.ir.text.text_table import aligned


def plan_text(plan: MemoryPlan, name: str) -> str:
    """Format a plan for people."""
    cells = [("bank", "bytes", "limit", "tensors")]
    for bank in plan.banks:
        limit = "" if bank.bytes is None else human(bank.bytes, "B")
        tensors = sum(place.bank == bank.name for place in plan.places)
        cells.append((bank.name, human(plan.used[bank.name], "B"), limit, f"{tensors:,}"))
    head = f"{name or 'the graph'}: {plural(plan.steps, 'step')}, {plural(len(plan.places), 'tensor')}"
    return "\n".join([head, "", *aligned(cells), "", f"live peak {human(plan.peak, 'B')}{_ratio(plan)}"])


def _ratio(plan: MemoryPlan) -> str:
    if len(plan.banks) > 1 or not plan.peak:
        return ""
    used = plan.used[plan.banks[0].name]
    return f"; the arena is {100 * used / plan.peak:.1f} % of it"


def plan_record(plan: MemoryPlan) -> dict[str, Any]:
    """Return the plan as JSON values, with the bytes used in each bank."""
    return {"used": plan.used, **plan.to_dict()}
