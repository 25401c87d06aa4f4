"""Match the records of the sweep with rows of the table, and count them for the page."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from tests.backend_sweep.judging import CRASHED, WRONG
from tests.stablehlo_models.unspecified import SKIPPED, UNSPECIFIED
from torch_ir.backends.deviations import DEVIATION, rows
from torch_ir.ir import OpNode, TensorMeta

DEVIATES, SILENT = "deviation", "silently wrong"
DECOMPOSED = ("core-aten", "prims")
ELSEWHERE = "NaN or infinity in different places"


def covered(record: Mapping[str, Any]) -> bool:
    """Whether the table lists a wrong result as a deviation, by its operators and values."""
    nodes = [_node(found) for found in record["nodes"]]
    for row in rows():
        values = row.when.get("values")
        if row.backend != record["backend"] or (values is not None and record["values"] not in values):
            continue
        if any(row.matches(node) for node in nodes):
            return True
    return False


def verdict(record: Mapping[str, Any]) -> str:
    """Return the verdict of the sweep, with wrong results divided by whether the table lists them."""
    if record["verdict"] not in (WRONG, CRASHED):
        return str(record["verdict"])
    return DEVIATES if _is_explained(record) or covered(record) else SILENT


def _is_explained(record: Mapping[str, Any]) -> bool:
    """Whether a page explains a difference of a path that has no table."""
    if record["verdict"] == CRASHED:
        return False
    if record["backend"] == "stablehlo":  # docs/stablehlo.md
        return record["values"] in SKIPPED or record["operator"] in UNSPECIFIED
    if record["backend"] not in DECOMPOSED:
        return False
    if record["values"] == "large":  # docs/operator-sets.md: intermediate results overflow
        return True
    if record["values"] == "denormal":  # the same page: squares underflow
        return str(record["operator"]).startswith(("std", "var"))
    is_complex = any(dtype.startswith("complex") for node in record["nodes"] for dtype in node["made"])
    return is_complex and record["values"] == "infinity" and record["detail"] == ELSEWHERE


def counts(records: Iterable[Mapping[str, Any]]) -> Counter[tuple[str, str]]:
    return Counter((record["backend"], verdict(record)) for record in records)


def documented() -> int:
    """How many rows of the table are deviations."""
    return sum(row.effect == DEVIATION for row in rows())


def _node(found: Mapping[str, Any]) -> OpNode:
    """A node as far as a record describes it."""
    inputs = [
        TensorMeta(f"t{index}", shape, dtype)
        for index, (shape, dtype) in enumerate(zip(found["shapes"], found["dtypes"], strict=True))
    ]
    return OpNode("node", found["op"], inputs, [TensorMeta("made", [], "float32")], found["attrs"], args=found["given"])
