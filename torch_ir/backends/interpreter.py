"""The back end `torch`: the executor, which calls the ATen operators one by one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from torch_ir.backends.table import Run, register_backend
from torch_ir.ir import IR
from torch_ir.run.executor import IRExecutor


@register_backend("torch", "the ATen calls of the graph one by one", in_place=True, checks_guards=True)
def prepare(ir: IR, weights: Mapping[str, Tensor]) -> Run:
    executor = IRExecutor(ir, weights, in_place=True)

    def run(values: Sequence[Any]) -> Sequence[Any]:
        return executor.run(values).outputs

    return run
