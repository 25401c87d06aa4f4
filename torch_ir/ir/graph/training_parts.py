"""The parts of a training step, by the module paths of its nodes: forward, `backward.<path>`, `optimizer.<path>`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch_ir.errors import GraphError

if TYPE_CHECKING:
    from torch_ir.ir.graph.graph import IR

BACKWARD = "backward"  # path of the module that computes gradients
OPTIMIZER = "optimizer"  # prefix of the keys of optimiser state, and of the module paths of updates
EXTENSION = "training"  # marks graphs with a backward part, and says how their state starts


def training_facts(ir: IR) -> dict[str, Any]:
    """Return what the file of a training step says about it; raise GraphError if the graph is not one."""
    facts = ir.extensions.get(EXTENSION)
    if facts is None:
        raise GraphError("the graph is not a training step; extract_training makes one", rule="R4")
    if not isinstance(facts, dict):
        raise GraphError(f"extensions.{EXTENSION} must be an object, not {facts!r:.60}", rule="R4")
    return facts


def part_of_path(path: str) -> str:
    """Return the part of the step that a module path belongs to; empty for forward and loss."""
    first = path.partition(".")[0]
    return first if first in (BACKWARD, OPTIMIZER) else ""


def forward_path(path: str) -> str:
    """Return the path of the forward module that a path of any part belongs to."""
    part = part_of_path(path)
    return path[len(part) + 1 :] if part else path


def state_owner(key: str) -> str | None:
    """Return the key of the parameter whose optimiser state this is; None for other keys and learning rates."""
    parts = key.split(".", 2)
    if len(parts) < 3 or parts[0] != OPTIMIZER or (parts[1] == "lr" and parts[2].isdecimal()):
        return None
    return parts[2]
