"""Picture of a memory plan as SVG: steps to the right, offsets upwards, a rectangle per tensor, a panel per bank."""

from __future__ import annotations

from collections.abc import Iterator

from torch_ir.draw.colours import COLOURS, FONT
from torch_ir.errors import DrawError
from torch_ir.escaping import in_html
from torch_ir.ir.plans.memory_plan import Bank, MemoryPlan, Place

_WIDTH, _HEIGHT = 1000, 360  # of a panel
_LEFT, _RIGHT, _TOP, _GAP = 90, 20, 50, 70
_MOST_PLACES = 20_000
_FAMILIES = ("matmul", "elementwise", "normalisation", "activation", "reduction", "communication", "input", "attention")
_SCRATCH = COLOURS["weight"]
_LINE = "#c62828"
_AXIS = "#555555"
_CHARACTER = 6.2  # the width of one, at font size 10
_LEAST_HEIGHT = 11  # of a rectangle with a name
_TICKS = 4


def memory_picture(plan: MemoryPlan, title: str = "") -> str:
    """Return the picture as SVG text; each rectangle has its tensor, bytes and steps as a tooltip."""
    if len(plan.places) > _MOST_PLACES:
        raise DrawError(f"the plan has {len(plan.places)} tensors, more than the {_MOST_PLACES} that can be drawn")
    height = _TOP + len(plan.banks) * (_HEIGHT + _GAP)
    width = _LEFT + _WIDTH + _RIGHT
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'font-family="{FONT}, sans-serif" font-size="10">',
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
        f'<text x="{_LEFT}" y="22" font-size="15">{in_html(title or "memory plan")}</text>',
    ]
    for number, bank in enumerate(plan.banks):
        parts += _panel(plan, bank, _TOP + number * (_HEIGHT + _GAP))
    return "\n".join([*parts, "</svg>", ""])


def _panel(plan: MemoryPlan, bank: Bank, top: int) -> Iterator[str]:
    used = plan.used[bank.name]
    places = [(number, place) for number, place in enumerate(plan.places) if place.bank == bank.name and place.bytes]
    limit = "" if bank.bytes is None else f" of {bank.bytes:,} B"
    heading = f"{bank.name}: {used:,} B{limit}, {len(places):,} tensors"
    bottom = top + _HEIGHT
    yield f'<text x="{_LEFT}" y="{top - 6}" font-size="12">{in_html(heading)}</text>'
    scale = _HEIGHT / max(used, 1)
    for number, place in places:
        yield _rectangle(place, number, bottom, scale, plan.steps)
    yield f'<path d="M{_LEFT} {top}V{bottom}H{_LEFT + _WIDTH}" fill="none" stroke="{_AXIS}"/>'
    for tick in range(_TICKS + 1):
        y, x = bottom - _HEIGHT * tick / _TICKS, _LEFT + _WIDTH * tick / _TICKS
        yield f'<text x="{_LEFT - 6}" y="{y + 3:.1f}" text-anchor="end" fill="{_AXIS}">{used * tick // _TICKS:,}</text>'
        step = plan.steps * tick // _TICKS
        yield f'<text x="{x:.1f}" y="{bottom + 14}" text-anchor="middle" fill="{_AXIS}">{step:,}</text>'
    yield f'<text x="{_LEFT + _WIDTH / 2}" y="{bottom + 30}" text-anchor="middle" fill="{_AXIS}">step</text>'
    if len(plan.banks) == 1 and plan.peak <= used:
        y = bottom - plan.peak * scale
        yield f'<path d="M{_LEFT} {y:.1f}H{_LEFT + _WIDTH}" stroke="{_LINE}" stroke-dasharray="5 3"/>'
        label = f"live peak {plan.peak:,} B"
        yield f'<text x="{_LEFT + _WIDTH}" y="{top - 6}" text-anchor="end" fill="{_LINE}">{label}</text>'


def _rectangle(place: Place, number: int, bottom: int, scale: float, steps: int) -> str:
    fill, border = _SCRATCH if place.is_scratch else COLOURS[_FAMILIES[number % len(_FAMILIES)]]
    x, width = _LEFT + _WIDTH * place.first / steps, _WIDTH * (place.last + 1 - place.first) / steps
    height = place.bytes * scale
    y = bottom - place.offset * scale - height
    kind = "scratch of " if place.is_scratch else ""
    tip = f"{kind}{place.name}: {place.bytes:,} B at {place.offset:,}, steps {place.first:,} to {place.last:,}"
    shape = f'<rect x="{x:.2f}" y="{y:.2f}" width="{width:.2f}" height="{height:.2f}" fill="{fill}" stroke="{border}"/>'
    fits = height >= _LEAST_HEIGHT and width >= _CHARACTER * len(place.name)
    middle = f'x="{x + width / 2:.1f}" y="{y + height / 2 + 3.5:.1f}"'
    name = f'<text {middle} text-anchor="middle">{in_html(place.name)}</text>' if fits else ""
    return f"<g><title>{in_html(tip)}</title>{shape}{name}</g>"
