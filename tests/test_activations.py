"""Activations that are written out become their operators, in every form."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from tests.captured import captured, kinds
from tests.rewriting import optimized
from torch_ir.passes.optimize_levels import CLEAN

ROOT = math.sqrt(2 / math.pi)
SPELLINGS: dict[str, tuple[Callable[..., Any], str]] = {
    "gelu": (lambda x: x * 0.5 * (1.0 + torch.erf(x / math.sqrt(2.0))), "gelu none"),
    "gelu, factor first": (lambda x: 0.5 * x * (torch.erf(x * 0.7071067811865475) + 1), "gelu none"),
    "gelu, factor last": (lambda x: x * (1 + torch.erf(x / math.sqrt(2.0))) / 2, "gelu none"),
    "gelu, distribution": (lambda x: x * (0.5 * (1.0 + torch.erf(x / 1.4142135623730951))), "gelu none"),
    "gelu of GPT-2": (
        lambda x: 0.5 * x * (1.0 + torch.tanh(ROOT * (x + 0.044715 * torch.pow(x, 3.0)))),
        "gelu tanh",
    ),
    "gelu of Bloom": (
        lambda x: x * 0.5 * (1.0 + torch.tanh(0.79788456 * x * (1 + 0.044715 * x * x))),
        "gelu tanh",
    ),
    "silu": (lambda x: x * torch.sigmoid(x), "silu"),
    "silu, other order": (lambda x: torch.sigmoid(x) * x, "silu"),
    "hard swish": (lambda x: x * F.relu6(x + 3) / 6, "hardswish"),
    "hard swish, other order": (lambda x: F.hardtanh(3 + x, 0.0, 6.0) / 6 * x, "hardswish"),
    "hard sigmoid": (lambda x: x * F.hardsigmoid(x), "hardswish"),
    "mish": (lambda x: x * torch.tanh(F.softplus(x)), "mish"),
}


@pytest.mark.parametrize("name", SPELLINGS)
@pytest.mark.parametrize("before", [[], list(CLEAN)], ids=["as captured", "clean"])
def test_every_spelling(name: str, before: list[str]) -> None:
    """One operator, whatever the order of its operands, also where x is itself a sum."""
    function, wanted = SPELLINGS[name]
    after = optimized(captured(lambda x, y: function(x + y), (3, 8), (3, 8)), [*before, "activations"])
    add, node = after.nodes
    told = " ".join([node.op_type.split(".")[1], *filter(None, [node.attrs.get("approximate")])])
    assert (add.op_type, told) == ("aten.add.Tensor", wanted)
    assert len(node.origins) > 2 or name in ("silu", "silu, other order", "hard sigmoid")


@pytest.mark.parametrize(
    "function",
    [
        lambda x, y: y * torch.sigmoid(x),
        lambda x, y: x * torch.sigmoid(1.702 * x),
        lambda x, y: x * (1.0 + torch.erf(x / math.sqrt(2.0))),
        lambda x, y: 0.5 * x * (1.0 - torch.erf(x / math.sqrt(2.0))),
        lambda x, y: 0.5 * x * (1.0 + torch.erf(x / 1.41)),
        lambda x, y: 0.5 * x * (1.0 + torch.tanh(ROOT * (x + 0.05 * torch.pow(x, 3.0)))),
        lambda x, y: 0.5 * y * (1.0 + torch.erf(x / math.sqrt(2.0))),
        lambda x, y: x * F.relu6(x + 2) / 6,
        lambda x, y: (lambda gate: (x * gate, gate))(torch.sigmoid(x)),
        lambda x, y: (lambda gate: x * gate * gate)(torch.sigmoid(x)),
        lambda x, y: x * torch.tanh(F.softplus(x, beta=2)),
    ],
    ids=[
        "gate of another", "quick gelu", "no half", "minus", "another root", "another factor", "another x", "plus 2",
        "gate is read", "gate squared", "another softplus",
    ],
)  # fmt: skip
def test_what_stays(function: Callable[..., Any]) -> None:
    """Similar nodes that compute something else, or whose intermediate results have other consumers."""
    ir = captured(function, (3, 8), (3, 8))
    after = optimized(ir, ["activations"])
    assert kinds(after) == kinds(ir)
