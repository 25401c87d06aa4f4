"""Check the names that handlers are registered for, against torch if it is loaded."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from difflib import get_close_matches
from types import ModuleType
from typing import Any

from torch_ir.errors import RegistryError, did_you_mean
from torch_ir.rewrite import Pattern
from torch_ir.targets.handlers import Key

_CLOSE = 0.8


def check_key(key: Key, target: str) -> None:
    """Raise RegistryError for an operator, argument, class or function that torch lacks, if torch is loaded."""
    if "torch" not in sys.modules:
        return
    from torch_ir.ops import objection  # imports torch

    if isinstance(key, Pattern):
        key.check_names(f"target {target!r}")
    elif key.startswith("torch."):
        _check_path(key, target)
    elif problem := objection([key], ()):
        raise RegistryError(f"target {target!r}: {problem}")


def check_unused(keys: Iterable[Key], used: Iterable[str], missing: Iterable[str], target: str) -> None:
    """Check unused names that resemble operators without a handler; loads torch for that."""
    bases = {op_type.rpartition(".")[0] for op_type in used}
    lacking = [name for op_type in missing for name in (op_type, op_type.rpartition(".")[0])]
    unused = [key for key in keys if isinstance(key, str) and key not in bases and key not in used]
    if not any(get_close_matches(key, lacking, n=1, cutoff=_CLOSE) for key in unused):
        return
    try:
        import torch  # noqa: F401
    except ImportError:
        return
    for key in unused:
        check_key(key, target)


def _check_path(name: str, target: str) -> None:
    """Raise RegistryError if a name such as `torch.nn.Linear` does not exist, as far as torch is imported."""
    holder: Any = sys.modules["torch"]
    for part in name.split(".")[1:]:
        if not hasattr(holder, part):
            if not isinstance(holder, (ModuleType, type)):
                return
            raise RegistryError(f"target {target!r}: unknown name {name!r}{did_you_mean(part, dir(holder))}")
        holder = getattr(holder, part)
