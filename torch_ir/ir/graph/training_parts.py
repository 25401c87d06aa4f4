"""The parts of a training step, by the module paths of its nodes: forward, `backward.<path>`, `optimizer.<path>`."""

from __future__ import annotations

BACKWARD = "backward"  # path of the module that computes gradients
OPTIMIZER = "optimizer"  # prefix of the keys of optimiser state, and of the module paths of updates
EXTENSION = "training"  # marks graphs with a backward part, and says how their state starts


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
