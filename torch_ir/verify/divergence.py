"""The result of a localisation: the first node that differs, and the limits of the answer."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from torch_ir.errors import listed
from torch_ir.ir import OpNode

_SHOWN = 8


@dataclass(frozen=True)
class Divergence:
    """The first node whose value differs from the original's although its inputs agree."""

    node: str
    op_type: str
    output: str
    reason: str
    module: str = ""
    call: int = 0
    module_class: str = ""
    source: str = ""
    max_diff: float = float("inf")
    weight: str = ""  # the key of the wrong weight
    original: str = ""  # the operator that the original calls there
    agreed: tuple[str, ...] = ()  # inputs of the node that agree with the original
    suspects: tuple[str, ...] = ()  # preceding nodes that could not be compared: any of them may be the first

    def __str__(self) -> str:
        call = f", call {self.call}" if self.call else ""
        kind = f" ({self.module_class}{call})" if self.module_class else ""
        module = f"module {self.module}{kind}" if self.module else f"the model's own forward{kind}"
        lines = [
            f"first difference: node {self.node!r} ({self.op_type})"
            + (f", output {self.output!r}" * bool(self.output)),
            f"  in {module}" + f", {self.source}" * bool(self.source),
            f"  {self.reason}" + f", max diff {self.max_diff:.3g}" * math.isfinite(self.max_diff),
        ]
        if self.original and self.original != self.op_type:
            lines.append(f"  the original calls {self.original} there")
        if self.agreed:
            lines.append(f"  as in the original: {', '.join(self.agreed)}")
        if self.suspects:
            lines.append(f"  not comparable on the way to it: {listed(self.suspects, _SHOWN)}")
        return "\n".join(lines)


@dataclass
class Localisation:
    """First difference of a graph from its model, if any, and the limits of the search."""

    divergence: Divergence | None = None
    notes: list[str] = field(default_factory=list)


def divergence_at(node: OpNode, reason: str, max_diff: float = float("inf"), output: str = "") -> Divergence:
    """Return the divergence of a node, by default at its first output."""
    name = output or (node.outputs[0].name if node.outputs else "")
    return Divergence(node.name, node.op_type, name, reason, *node.origin[:4], max_diff=max_diff)
