"""The roofline: how long work takes on a device that computes so fast and moves memory so fast, at best.

device = Roofline.parse("peak=312TFLOPs,bw=2.0TB/s")
device.seconds(work)            # the longer of computing and moving
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from torch_ir.analysis.cost_model.node_costs import Work
from torch_ir.analysis.shapes.size_polynomials import weight_of
from torch_ir.errors import DeviceError, did_you_mean

_PREFIXES = {"": 1.0, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}
_UNITS = {"peak": r"FLOP/?s", "bw": r"B(?:/s)?"}
_EXAMPLE = "write it as peak=312TFLOPs,bw=2.0TB/s"


@dataclass(frozen=True)
class Roofline:
    """How many FLOPs a device computes, and how many bytes of memory it moves, in a second."""

    peak: float
    bandwidth: float

    def __post_init__(self) -> None:
        for name, value in (("peak", self.peak), ("bandwidth", self.bandwidth)):
            if not (math.isfinite(value) and value > 0):
                raise DeviceError(f"the {name} of a device must be more than 0, and finite, not {value:g}")

    @classmethod
    def parse(cls, text: str) -> Roofline:
        """A device from its figures: `peak=312TFLOPs,bw=2.0TB/s`; without units, FLOPs and bytes per second."""
        found: dict[str, float] = {}
        for part in text.split(","):
            name, _, amount = (piece.strip() for piece in part.partition("="))
            if name not in _UNITS:
                raise DeviceError(f"{part.strip()!r} is no figure of a device{did_you_mean(name, _UNITS)}; {_EXAMPLE}")
            if name in found:
                raise DeviceError(f"{name!r} of the device is given twice")
            found[name] = _amount(name, amount)
        missing = next((name for name in _UNITS if name not in found), None)
        if missing is not None:
            raise DeviceError(f"the device {text!r} is without {missing!r}; {_EXAMPLE}")
        return cls(found["peak"], found["bw"])

    @property
    def ridge(self) -> float:
        """The FLOPs per byte from which on computing takes longer than moving."""
        return self.peak / self.bandwidth

    def seconds(self, work: Work) -> float:
        """The longer of computing and moving, with sizes that are open as 1024."""
        return max(weight_of(work.flops) / self.peak, weight_of(work.bytes) / self.bandwidth)

    def is_compute_bound(self, work: Work) -> bool:
        return weight_of(work.flops) / self.peak > weight_of(work.bytes) / self.bandwidth


def _amount(name: str, text: str) -> float:
    match = re.fullmatch(rf"([0-9]+\.?[0-9]*(?:e[+-]?[0-9]+)?)\s*([KMGTP]?)(?:{_UNITS[name]})?", text, re.IGNORECASE)
    if match is None:
        raise DeviceError(f"{name}={text} is no figure of a device; {_EXAMPLE}")
    return float(match[1]) * _PREFIXES[match[2].upper()]
