"""Compile StableHLO text with IREE and run it on torch's tensors, at any size."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from torch_ir.targets.stablehlo.stablehlo_module import StableHLO

_FLAGS = ["--iree-llvmcpu-target-cpu=host", "--iree-opt-level=O0", "--iree-input-demote-i64-to-i32=false"]


def loaded(module: StableHLO) -> Any:
    """Return the compiled function `main`."""
    from iree import runtime
    from iree.compiler.tools import compile_str

    blob = compile_str(module.text, target_backends=["llvm-cpu"], input_type="stablehlo", extra_args=_FLAGS)
    config = runtime.Config("local-sync")
    context = runtime.SystemContext(config=config)
    vm = runtime.VmModule.copy_buffer(config.vm_instance, blob)
    context.add_vm_module(vm)
    return context.modules[vm.name].main


def run_graph(module: StableHLO, main: Any, weights: Mapping[str, Tensor], inputs: Sequence[Tensor]) -> list[Tensor]:
    """Return the outputs and new values in order."""
    given = [*(weights[key] for key in module.weights), *inputs]
    made = main(*(tensor.detach().contiguous().numpy() for tensor in given))
    several = made if isinstance(made, (list, tuple)) else [made]
    return [torch.from_numpy(one.to_host().copy()) for one in several]
