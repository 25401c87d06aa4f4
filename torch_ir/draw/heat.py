"""Heat: colour boxes by a number per node, such as FLOPs, and show the share of the total in each box.

The scale runs from light to dark with evenly falling lightness, so that it is also readable in grey.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from torch_ir.draw.elements import Box, Scale, Scene
from torch_ir.errors import DrawError
from torch_ir.ir.text.amounts import human

COLD = "#fafafa"  # zero cost
STOPS = ("#fdf6d3", "#fed395", "#fca168", "#f0705d", "#cb4a72", "#96337f", "#652a80")
DARK, BRIGHT = "#000000", "#ffffff"  # one of them has enough contrast on any colour


def heated(scene: Scene, heat: Mapping[str, float], unit: str) -> Scene:
    """Return the scene with boxes coloured by the sum of the numbers of their nodes."""
    wrong = next((name for name, number in heat.items() if not 0 <= number < math.inf), None)
    if wrong is not None:
        raise DrawError(f"the heat of {wrong!r} is {heat[wrong]!r}; expected a non-negative number")
    sums = {box.id: sum(heat.get(name, 0) for name in box.names) for box in scene.boxes}
    whole, most = sum(heat.values()), max(sums.values(), default=0)
    items = (
        _heated(item, sums[item.id], whole, most)
        if isinstance(item, Box) and item.names and item.kind != "input"
        else item
        for item in scene.items
    )
    scale = Scale(f"{human(whole, unit)} in all", "0", f"{human(most, unit)} per box")
    return replace(scene, items=tuple(items), scale=scale)


def colour(position: float) -> str:
    """Return the colour at a position of the scale between 0 and 1."""
    place = min(max(position, 0), 1) * (len(STOPS) - 1)
    low = min(int(place), len(STOPS) - 2)
    pairs = zip(_channels(STOPS[low]), _channels(STOPS[low + 1]), strict=True)
    return "#" + "".join(f"{round(one + (other - one) * (place - low)):02x}" for one, other in pairs)


def text_on(fill: str) -> str:
    """Return black or white, whichever is more readable on a colour."""
    linear = [value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4 for value in _shares(fill)]
    luminance = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
    return BRIGHT if 1.05 / (luminance + 0.05) > (luminance + 0.05) / 0.05 else DARK


def _heated(box: Box, number: float, whole: float, most: float) -> Box:
    fill = colour(number / most) if number else COLD
    share = (f"{_percent(number / whole)} %",) if number else ()
    return replace(box, fill=fill, lines=box.lines + share)


def _percent(share: float) -> str:
    """Format `12`, `1.2`, `<0.1`."""
    percent = 100 * share
    return "<0.1" if percent < 0.05 else f"{percent:.1f}" if percent < 9.95 else f"{percent:.0f}"


def _channels(colour: str) -> tuple[int, int, int]:
    return int(colour[1:3], 16), int(colour[3:5], 16), int(colour[5:7], 16)


def _shares(colour: str) -> list[float]:
    return [channel / 255 for channel in _channels(colour)]
