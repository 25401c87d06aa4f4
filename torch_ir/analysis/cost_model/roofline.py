"""Roofline model: the minimum time of work on a device with a given compute peak and memory bandwidth.

device = Roofline.parse("peak=312TFLOPs,bw=2.0TB/s")
device.seconds(work)            # max of compute time and memory time
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from torch_ir.analysis.cost_model.node_costs import Work
from torch_ir.analysis.shapes.size_polynomials import weight_of
from torch_ir.errors import DeviceError, did_you_mean

_PREFIXES = {"": 1.0, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}
_UNITS = {"peak": r"FLOP/?s", "bw": r"B(?:/s)?"}
_EXAMPLE = "write it as peak=312TFLOPs,bw=2.0TB/s"


@dataclass(frozen=True)
class Roofline:
    """A device's peak FLOPs and memory bytes per second."""

    peak: float
    bandwidth: float

    def __post_init__(self) -> None:
        for name, value in (("peak", self.peak), ("bandwidth", self.bandwidth)):
            if not (math.isfinite(value) and value > 0):
                raise DeviceError(f"the {name} of a device must be more than 0, and finite, not {value:g}")

    @classmethod
    def parse(cls, text: str) -> Roofline:
        """Parse `peak=312TFLOPs,bw=2.0TB/s`; without units, FLOPs and bytes per second."""
        found: dict[str, float] = {}
        for part in text.split(","):
            name, _, amount = (piece.strip() for piece in part.partition("="))
            if name not in _UNITS:
                raise DeviceError(f"invalid device figure {part.strip()!r}; {_EXAMPLE}{did_you_mean(name, _UNITS)}")
            if name in found:
                raise DeviceError(f"duplicate {name!r} of the device")
            found[name] = _amount(name, amount)
        missing = next((name for name in _UNITS if name not in found), None)
        if missing is not None:
            raise DeviceError(f"the device {text!r} lacks {missing!r}; {_EXAMPLE}")
        return cls(found["peak"], found["bw"])

    @property
    def ridge(self) -> float:
        """FLOPs per byte above which work is compute-bound."""
        return self.peak / self.bandwidth

    @property
    def is_asynchronous(self) -> bool:
        """Whether the device computes while the host prepares the next operator."""
        return False

    def dispatch_seconds(self, work: Work) -> float:
        """Return how long an operator takes to start, which the figures of a device do not say."""
        return 0.0

    def seconds(self, work: Work, inside: Sequence[Work] = ()) -> float:
        """Return the maximum of compute and memory time, with open sizes as 1024.

        `inside` is the work of each node of a fused operator; only what the operator reads and writes counts here.
        """
        return max(weight_of(work.flops) / self.peak, weight_of(work.bytes) / self.bandwidth)

    def is_compute_bound(self, work: Work) -> bool:
        return weight_of(work.flops) / self.peak > weight_of(work.bytes) / self.bandwidth


def _amount(name: str, text: str) -> float:
    match = re.fullmatch(rf"([0-9]+\.?[0-9]*(?:e[+-]?[0-9]+)?)\s*([KMGTP]?)(?:{_UNITS[name]})?", text, re.IGNORECASE)
    if match is None:
        raise DeviceError(f"invalid device figure {name}={text}; {_EXAMPLE}")
    return float(match[1]) * _PREFIXES[match[2].upper()]
