"""What is remembered from one process to the next: in a folder of the user's, where any file may be deleted."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder() -> Path:
    """`$TORCH_IR_CACHE`, or `torch_ir` in the folder that the system has for such things."""
    told = os.environ.get("TORCH_IR_CACHE")
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(told) if told else Path(base) / "torch_ir"
