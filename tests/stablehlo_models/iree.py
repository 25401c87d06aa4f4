"""Compile StableHLO text with IREE for the CPU and run it on torch's tensors."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torch_ir import IR
from torch_ir.ops.torch_types import TORCH_DTYPES
from torch_ir.targets.stablehlo.stablehlo_module import StableHLO
from torch_ir.targets.write_stablehlo import to_stablehlo


def run_graph(ir: IR, weights: Mapping[str, Tensor], inputs: Sequence[Tensor], module: StableHLO | None = None) -> Any:
    """Return the outputs and new values of a graph in order; IREE's errors are ValueErrors."""
    from iree import compiler, runtime

    module = module or to_stablehlo(ir)
    try:
        code = compiler.compile_str(
            module.text,
            input_type="stablehlo",
            target_backends=["llvm-cpu"],
            extra_args=["--iree-llvmcpu-target-cpu=generic", "--iree-input-demote-f64-to-f32=false"],
        )
    except compiler.CompilerToolError as error:
        raise ValueError(str(error)) from None
    config = runtime.Config("local-task")
    main = runtime.load_vm_module(runtime.VmModule.copy_buffer(config.vm_instance, code), config)["main"]
    made = main(*(_array(tensor) for tensor in (*(weights[key] for key in module.weights), *inputs)))
    results = made if isinstance(made, (tuple, list)) else [made]
    wanted = [(TORCH_DTYPES[tensor.dtype], tensor.shape) for tensor in ir.returns.inputs]
    return [_tensor(result, *form) for result, form in zip(results, wanted, strict=True)]


def _array(tensor: Tensor) -> Any:
    import ml_dtypes

    tensor = tensor.detach().resolve_conj().resolve_neg().contiguous()
    if tensor.dtype == torch.bfloat16:
        return tensor.view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    return tensor.numpy()


def _tensor(result: Any, dtype: torch.dtype, shape: Any) -> Tensor:
    found = np.array(result.to_host())
    if dtype == torch.bfloat16:
        return torch.from_numpy(found.view(np.int16)).view(torch.bfloat16).reshape(shape)
    return torch.from_numpy(found).to(dtype).reshape(shape)
