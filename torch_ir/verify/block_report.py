"""The report of a block-wise verification: one line per block, and what was not compared."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass
class BlockCheck:
    """One segment of the graph, a block or the nodes between two, compared with the same segment of the model."""

    name: str  # the module of a block; else the first and last node
    nodes: int
    is_block: bool = True
    function: str = ""  # the function that it calls
    outputs: int = 0  # tensors that later nodes read
    compared: int = 0  # outputs that were compared
    max_diff: float = 0.0
    reason: str = ""  # why it differs
    like: str = ""  # the equal block that was compared instead

    @property
    def status(self) -> str:
        if self.reason:
            return f"DIFFERS: {self.reason}"
        if self.like:
            return f"not run, equal to {self.like}"
        if not self.outputs:
            return "no outputs"
        return "ok" if self.compared else "not compared"

    def __str__(self) -> str:
        numbers = f"{self.compared} of {self.outputs} outputs, max diff {self.max_diff:.3g}, " * (not self.like)
        return f"{self.name}: {numbers}{self.status}"


@dataclass
class BlockReport:
    """The checks in execution order, and an item of `output_details` per tensor that the model returned."""

    is_valid: bool
    checks: list[BlockCheck] = field(default_factory=list)
    output_details: list[dict[str, Any]] = field(default_factory=list)
    error_message: str | None = None
    notes: list[str] = field(default_factory=list)

    @property
    def blocks(self) -> list[BlockCheck]:
        """The checks of blocks, without the segments between them."""
        return [check for check in self.checks if check.is_block]

    @property
    def max_diff(self) -> float:
        """The largest difference of all checks and outputs."""
        found = [*(check.max_diff for check in self.checks), *(item["max_diff"] for item in self.output_details)]
        return max(found, default=0.0)

    def __str__(self) -> str:
        lines = [f"Block-wise verification {'PASSED' if self.is_valid else 'FAILED'}"]
        if self.error_message:
            lines.append(f"  {self.error_message}")
        run = [check for check in self.blocks if check.compared]
        lines.append(f"  blocks compared: {len(run)} of {len(self.blocks)}, max diff {self.max_diff:.3g}")
        lines += [f"  {check}" for check in self.checks]
        return "\n".join([*lines, *detail_lines(self.output_details), *(f"  note: {note}" for note in self.notes)])


def detail_lines(details: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """Yield a line for each compared tensor."""
    for item in details:
        verdict = "ok" if item["is_close"] else f"DIFFERS: {item['reason']}"
        shape = "x".join(map(str, item["shape"])) or "scalar"
        yield f"  {item['name']}: {shape} {item['dtype']}, max diff {item['max_diff']:.3g}, {verdict}"
