"""What a sweep says of one model: a flat record."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from enum import Enum
from typing import Any


class Status(str, Enum):
    """How it went: `refused` is one sentence of torch_ir's own, `failed` any other error or a wrong result."""

    OK = "ok"
    REFUSED = "refused"
    FAILED = "failed"
    CRASHED = "crashed"
    TIMEOUT = "timeout"
    MEMORY = "out of memory"


@dataclass(frozen=True)
class Row:
    """One model; what a step would have told is None where it was not reached."""

    model: str
    status: str
    step: str = ""  # the last that was begun
    diagnosis: str = ""  # one sentence; empty where all went well
    seconds: float = 0.0
    peak_bytes: int | None = None  # of the whole process, with torch in it
    nodes: int | None = None
    parameters: int | None = None
    flops: int | None = None  # None, too, where sizes are left open
    bytes: int | None = None
    nodes_after: int | None = None  # optimisation, of those that are computed in every run
    max_diff: float | None = None  # between the graph and the model
    max_diff_after: float | None = None  # between the optimised graph and the graph
    digest: str | None = None  # of the graph, which lies in graphs/
    graph_bytes: int | None = None
    open_seconds: float | None = None
    extract_seconds: float | None = None
    cost_seconds: float | None = None
    optimize_seconds: float | None = None
    verify_seconds: float | None = None
    input: str = ""
    dim: str = ""
    worker: str = ""
    versions: str = ""
    key: str = ""

    def to_record(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Row:
        """The row that a record tells, whatever else it tells."""
        known = {field.name for field in fields(cls)}
        return cls(**{name: value for name, value in record.items() if name in known})
