"""Files that another version of torch wrote: operators that are different here are told, not refused.

A node lists every argument by name, so that the file itself says what its operators took.
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
    """What operators of a file are otherwise in the torch that is here: from op_type to a sentence."""

    def __init__(self, ir: IR) -> None:
        self.version = ir.pytorch_version
        self.is_other = minor(ir.pytorch_version) not in ("", minor(torch.__version__))
        self.found: dict[str, str] = {}

    def excuse(self, node: OpNode, why: str) -> bool:
        """Take note that an operator is not what a node takes it for; False if it was the same version."""
        if self.is_other:
            self.found.setdefault(node.op_type, why)
        return self.is_other

    def note_unknown(self, node: OpNode) -> None:
        """Take note of an operator of torch that is not here."""
        if node.op_type.partition(".")[0] in _TORCH:
            self.excuse(node, f"there is no {node.op_type}")

    def note_new(self, node: OpNode, operator: Operator) -> None:
        """Take note of arguments that the file does not speak of."""
        if self.is_other and isinstance(operator, OpOverload) and (new := absent(node, operator)):
            self.excuse(node, f"{node.op_type} also takes {', '.join(map(repr, new))}")

    def __str__(self) -> str:
        listed = [*self.found.values()][:_SHOWN]
        more = f"; and {len(self.found) - _SHOWN} more" if len(self.found) > _SHOWN else ""
        return f"written with torch {self.version}, and here, in {torch.__version__}, {'; '.join(listed)}{more}"


def minor(version: str) -> str:
    """`2.13` of `2.13.0+cpu`; nothing where no version is said."""
    found = _VERSION.fullmatch(version)
    return found[1] if found else ""
