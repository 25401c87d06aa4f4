"""NodeInfo: the argument of a conversion registered with `register_op`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from torch_ir.ir import TensorMeta


@dataclass
class NodeInfo:
    """A captured call: descriptions of its tensors, and other arguments by schema name."""

    name: str
    op: str
    target: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    input_metas: list[TensorMeta]
    output_metas: list[TensorMeta]
    attrs: dict[str, Any] = field(default_factory=dict)
