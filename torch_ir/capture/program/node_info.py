"""NodeInfo: what a registered conversion is told about a captured call."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from torch_ir.ir import TensorMeta


@dataclass
class NodeInfo:
    """One captured call as `register_op` shows it: tensors described, other arguments bound to their schema names."""

    name: str
    op: str
    target: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    input_metas: list[TensorMeta]
    output_metas: list[TensorMeta]
    attrs: dict[str, Any] = field(default_factory=dict)
