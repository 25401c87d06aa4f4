"""Why no plan fits: the memory that the smallest one needs."""

from __future__ import annotations

import math

from torch_ir.analysis.cost_model.table_text import human
from torch_ir.analysis.cost_model.traffic import bytes_of
from torch_ir.analysis.shapes.size_polynomials import weight_of
from torch_ir.ir import IR
from torch_ir.planning.prices import Cluster


def why_none(ir: IR, cluster: Cluster, smallest: float) -> str:
    """Return a sentence that says what is missing, given the memory of the smallest plan."""
    weights = sum(weight_of(bytes_of(param)) for param in ir.params)
    fewest = math.ceil(weights / cluster.memory)
    devices = f"{cluster.devices} device{'s' * (cluster.devices != 1)}"
    given, needed = (human(round(amount), "B") for amount in (cluster.memory, smallest))
    message = f"no plan fits {devices} of {given}: the smallest needs {needed} on each"
    if fewest > cluster.devices:
        return f"{message}; the weights alone, {human(round(weights), 'B')}, need {fewest} devices of that size"
    return f"{message}; give more memory or more devices"
