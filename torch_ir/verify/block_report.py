"""What a block-wise verification says: one line for each block, and what the verdict does not cover."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass
class BlockCheck:
    """One stretch of the graph, a block or what lies between two, against the same stretch of the model."""

    name: str  # the module of a block; else the first and last node
    nodes: int
    is_block: bool = True
    function: str = ""  # the body that it calls
    outputs: int = 0  # tensors that leave it
    compared: int = 0  # of these
    max_diff: float = 0.0
    reason: str = ""  # why it differs
    like: str = ""  # the equal block that was compared in its stead

    @property
    def status(self) -> str:
        if self.reason:
            return f"DIFFERS: {self.reason}"
        if self.like:
            return f"not run, equal to {self.like}"
        if not self.outputs:
            return "nothing leaves it"
        return "ok" if self.compared else "not compared by itself"

    def __str__(self) -> str:
        numbers = f"{self.compared} of {self.outputs} outputs, max diff {self.max_diff:.3g}, " * (not self.like)
        return f"{self.name}: {numbers}{self.status}"


@dataclass
class BlockReport:
    """The checks in the order of the run, and an item of `output_details` per tensor that the model returned."""

    is_valid: bool
    checks: list[BlockCheck] = field(default_factory=list)
    output_details: list[dict[str, Any]] = field(default_factory=list)
    error_message: str | None = None
    notes: list[str] = field(default_factory=list)

    @property
    def blocks(self) -> list[BlockCheck]:
        """The checks of blocks alone."""
        return [check for check in self.checks if check.is_block]

    @property
    def max_diff(self) -> float:
        """The largest difference that was found anywhere."""
        found = [*(check.max_diff for check in self.checks), *(item["max_diff"] for item in self.output_details)]
        return max(found, default=0.0)

    def __str__(self) -> str:
        lines = [f"Block-wise verification {'PASSED' if self.is_valid else 'FAILED'}"]
        if self.error_message:
            lines.append(f"  {self.error_message}")
        run = [check for check in self.blocks if check.compared]
        lines.append(f"  blocks compared: {len(run)} of {len(self.blocks)}, max diff {self.max_diff:.3g}")
        lines += [f"  {check}" for check in self.checks]
        for item in self.output_details:
            verdict = "ok" if item["is_close"] else f"DIFFERS: {item['reason']}"
            shape = "x".join(map(str, item["shape"])) or "scalar"
            lines.append(f"  {item['name']}: {shape} {item['dtype']}, max diff {item['max_diff']:.3g}, {verdict}")
        return "\n".join([*lines, *(f"  note: {note}" for note in self.notes)])
