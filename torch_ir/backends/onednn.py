"""The back end `onednn`: the executor, with weights packed once for oneDNN on this CPU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from torch_ir.backends.table import Run, register_backend
from torch_ir.errors import ExecutionError
from torch_ir.ir import IR
from torch_ir.ops.prepare_run import with_calls_inline
from torch_ir.ops.torch_internals import HAS_MKLDNN
from torch_ir.passes import optimize
from torch_ir.run.binding import bind
from torch_ir.run.executor import IRExecutor

PASSES = ("pack-linears", "winograd", "pack-convolutions", "common-subexpressions")


def require_onednn() -> None:
    """Raise ExecutionError if torch was built without oneDNN."""
    if not HAS_MKLDNN:
        raise ExecutionError("this torch has no oneDNN (torch.backends.mkldnn); install a build for x86 or Arm")


@register_backend("onednn", "the executor, with weights packed for oneDNN", require=require_onednn, checks_guards=True)
def prepare(ir: IR, weights: Mapping[str, Tensor]) -> Run:
    packed, _ = optimize(with_calls_inline(ir), passes=PASSES)
    executor = IRExecutor(*bind(packed, weights))  # releases the unpacked weights

    def run(values: Sequence[Any]) -> Sequence[Any]:
        return executor.run(values).outputs

    return run
