"""Opaque operators: stand for code outside torch that computes a tensor from data which left torch.

During conversion, each is a registered operator with a shape rule only. In the graph it is `opaque.Net_forward`, which
runs if the user registers an executor for it.
"""

from __future__ import annotations

import re
from typing import Any

import torch

from torch_ir.ir import IR
from torch_ir.ops.torch_internals import OpOverload, destroy_library

OPAQUE = "opaque"


class OpaqueOperators:
    """The opaque operators of one recording: one for each source line and result metadata."""

    def __init__(self) -> None:
        self._library: Any = torch.library.Library(OPAQUE, "FRAGMENT")  # type: ignore[no-untyped-call]  # torch's
        self._names: dict[tuple[str, Any], str] = {}

    def operator(self, wanted: str, place: str, result: torch.Tensor | None) -> OpOverload:
        """Return the operator for a source line; without a result, one that only takes data."""
        form = None if result is None else (tuple(result.shape), tuple(result.stride()), result.dtype, result.device)
        if (place, form) not in self._names:
            name = self._fresh(re.sub(r"\W", "_", wanted))
            self._names[place, form] = name
            gives = "()" if form is None else "Tensor"
            self._library.define(f"{name}(Tensor[] inputs, *, str place) -> {gives}")
            torch.library.register_fake(f"{OPAQUE}::{name}", _blank(form), lib=self._library)
        found: OpOverload = getattr(torch.ops.opaque, self._names[place, form]).default
        torch.fx.node.has_side_effect(found)
        return found

    def _fresh(self, wanted: str) -> str:
        taken, name, number = set(self._names.values()), wanted, 1
        while name in taken or hasattr(torch.ops.opaque, name):
            name, number = f"{wanted}_{number}", number + 1
        return name

    def close(self) -> None:
        """Unregister the operators: the graph only has their names."""
        destroy_library(self._library)


def _blank(form: Any) -> Any:
    """Return the shape rule of an operator with this result metadata."""

    def rule(inputs: list[torch.Tensor], *, place: str) -> torch.Tensor | None:
        if form is None:
            return None
        shape, stride, dtype, device = form
        return torch.empty_strided(shape, stride, dtype=dtype, device=device)

    return rule


def name_placeholders(ir: IR) -> None:
    """Rename opaque nodes so that their type cannot be that of a torch operator."""
    for node in ir.all_nodes():
        if node.op_type.startswith(f"{OPAQUE}."):
            node.op_type = node.op_type.removesuffix(".default")
