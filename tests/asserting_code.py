"""A forward with assertions; pytest rewrites those of test files."""

from typing import Any

from torch import Tensor


def asserts(net: Any, x: Tensor) -> Tensor:
    assert x.max() < 100
    assert net.scale.item() > 2, "too small"
    return x + 1
