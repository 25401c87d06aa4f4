"""Places where data leaves torch: what comes back from there is the result of an operator that nobody can look into.

While a recording is converted, such an operator is a real one that knows the shape of its result and nothing else. In
the graph it is a placeholder, `opaque.Net_forward`, that runs where its user has registered an executor for it.
"""

from __future__ import annotations

import re
from typing import Any

import torch

from torch_ir.ir import IR
from torch_ir.ops.torch_internals import OpOverload, destroy_library

OPAQUE = "opaque"


class OpaqueOperators:
    """The opaque operators of one recording: one for each place in the source and form of result."""

    def __init__(self) -> None:
        self._library: Any = torch.library.Library(OPAQUE, "FRAGMENT")  # type: ignore[no-untyped-call]  # torch's
        self._names: dict[tuple[str, Any], str] = {}

    def operator(self, wanted: str, place: str, result: torch.Tensor | None) -> OpOverload:
        """The operator for a place; without a result, one that data goes into and nothing comes out of."""
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
        """Forget the operators: in the graph, they are names."""
        destroy_library(self._library)


def _blank(form: Any) -> Any:
    """The rule of an operator that gives this form."""

    def rule(inputs: list[torch.Tensor], *, place: str) -> torch.Tensor | None:
        if form is None:
            return None
        shape, stride, dtype, device = form
        return torch.empty_strided(shape, stride, dtype=dtype, device=device)

    return rule


def name_placeholders(ir: IR) -> None:
    """Let opaque nodes go by a name that can never be an operator's."""
    for node in ir.nodes:
        if node.op_type.startswith(f"{OPAQUE}."):
            node.op_type = node.op_type.removesuffix(".default")
    for body in ir.functions.values():
        name_placeholders(body)
