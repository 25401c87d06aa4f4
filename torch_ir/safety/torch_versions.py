"""Files written with another version of torch: differing operators are reported, not refused.

A node lists every argument by name, so the file itself states the arguments of its operators.
"""

from __future__ import annotations

import re

import torch

from torch_ir.ir import IR, OpNode
from torch_ir.ops.schema import Operator
from torch_ir.ops.torch_internals import OpOverload
from torch_ir.safety.attributes import absent

_VERSION = re.compile(r"(\d+\.\d+)\b.*")
_SHOWN = 5
_TORCH = ("aten", "prims", "higher_order")


class Changes:
    """Differences of a file's operators in the installed torch: from op_type to a sentence."""

    def __init__(self, ir: IR) -> None:
        self.version = ir.pytorch_version
        self.is_other = minor(ir.pytorch_version) not in ("", minor(torch.__version__))
        self.found: dict[str, str] = {}

    def excuse(self, node: OpNode, why: str) -> bool:
        """Record that an operator differs from what a node expects; return False if the versions are equal."""
        if self.is_other:
            self.found.setdefault(node.op_type, why)
        return self.is_other

    def note_unknown(self, node: OpNode) -> None:
        """Record an operator of torch that is not installed."""
        if node.op_type.partition(".")[0] in _TORCH:
            self.excuse(node, f"there is no {node.op_type}")

    def note_new(self, node: OpNode, operator: Operator) -> None:
        """Record arguments that the file does not have."""
        if self.is_other and isinstance(operator, OpOverload) and (new := absent(node, operator)):
            self.excuse(node, f"{node.op_type} also takes {', '.join(map(repr, new))}")

    def __str__(self) -> str:
        listed = [*self.found.values()][:_SHOWN]
        more = f"; and {len(self.found) - _SHOWN} more" if len(self.found) > _SHOWN else ""
        return f"written with torch {self.version}; in torch {torch.__version__}, {'; '.join(listed)}{more}"


def minor(version: str) -> str:
    """Return `2.13` for `2.13.0+cpu`; empty if there is no version."""
    found = _VERSION.fullmatch(version)
    return found[1] if found else ""
