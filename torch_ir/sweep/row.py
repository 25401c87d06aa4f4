"""The result of a sweep for one model: a flat record."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from enum import Enum
from typing import Any


class Status(str, Enum):
    """The outcome: `refused` is an error raised by torch_ir, `failed` any other error or a wrong result."""

    OK = "ok"
    REFUSED = "refused"
    FAILED = "failed"
    CRASHED = "crashed"
    TIMEOUT = "timeout"
    MEMORY = "out of memory"


@dataclass(frozen=True)
class Row:
    """One model; facts of steps that did not run are None."""

    model: str
    status: str
    step: str = ""  # the last step that started
    diagnosis: str = ""  # one sentence; empty if ok
    seconds: float = 0.0
    peak_bytes: int | None = None  # of the whole process, including torch
    nodes: int | None = None
    parameters: int | None = None
    flops: int | None = None  # also None for symbolic sizes
    bytes: int | None = None
    nodes_after: int | None = None  # after optimisation, without the prologue
    max_diff: float | None = None  # between the graph and the model
    max_diff_after: float | None = None  # between the optimised graph and the graph
    digest: str | None = None  # of the graph, which is in graphs/
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
        """Return the row of a record, ignoring unknown fields; raise TypeError or UnicodeError for a wrong value."""
        found = cls(**{field.name: record[field.name] for field in fields(cls) if field.name in record})
        for field in fields(cls):
            kinds = str(field.type).replace("float", "float | int").replace("None", "NoneType").split(" | ")
            if type(value := getattr(found, field.name)).__name__ not in kinds:
                raise TypeError(f"{field.name} is {value!r:.80}")
            str(value).encode()  # refuses half of a surrogate pair
        return found
