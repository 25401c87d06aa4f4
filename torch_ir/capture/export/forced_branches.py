"""Force the outcomes of branches on data in torch.export, and record each as a decision node."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from torch_ir.capture.data_branches.decision_paths import Path
from torch_ir.capture.program.provenance import user_line, users_frame
from torch_ir.ops.guards import decision


class ForcedOutcomes(TorchFunctionMode):
    """Answers `bool(tensor)` with the outcomes of a path, and records each as a decision."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path

    def __torch_function__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is not torch.Tensor.__bool__:
            return func(*args, **(kwargs or {}))
        value = args[0] if args[0].dtype == torch.bool else args[0] != 0
        outcome = self.path.take(None)
        decision(value, outcome, user_line(users_frame(sys._getframe(1))))
        return outcome
