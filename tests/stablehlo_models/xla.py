"""Compile StableHLO text with XLA on the CPU and run it on torch's tensors."""

import re
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from torch_ir import IR
from torch_ir.ops.torch_types import TORCH_DTYPES, dtype_name
from torch_ir.targets.stablehlo.element_types import tensor_type
from torch_ir.targets.stablehlo.stablehlo_module import StableHLO
from torch_ir.targets.write_stablehlo import to_stablehlo


@cache
def _backend() -> Any:
    import jax
    import jax.extend

    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_enable_x64", True)
    return jax.extend.backend.get_backend("cpu")


def compiled(text: str | bytes) -> Any:
    """Compile a module; options are given explicitly, because the default argument turns on XLA's fast math."""
    from jaxlib import xla_client

    backend = _backend()
    return backend.compile_and_load(text, backend.local_devices()[:1], xla_client.CompileOptions())


def to_array(tensor: Tensor) -> Any:
    import jax
    import ml_dtypes

    place = _backend().local_devices()[0]  # by default, JAX takes a GPU where it sees one
    tensor = tensor.detach().resolve_conj().resolve_neg().contiguous()
    if tensor.dtype == torch.bfloat16:
        return jax.device_put(tensor.view(torch.int16).numpy().view(ml_dtypes.bfloat16), place)
    return jax.device_put(tensor.numpy(), place)


def to_tensor(array: Any, dtype: torch.dtype) -> Tensor:
    found = np.array(array)
    if dtype == torch.bfloat16:
        return torch.from_numpy(found.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(found)


def execute(executable: Any, arguments: Sequence[Tensor], dtypes: Sequence[torch.dtype]) -> list[Tensor]:
    """Return the results of `main`."""
    done = executable.execute_sharded([to_array(one) for one in arguments])
    arrays = [shards[0] for shards in done.disassemble_into_single_device_arrays()]
    return [to_tensor(array, dtype) for array, dtype in zip(arrays, dtypes, strict=True)]


def run_graph(ir: IR, weights: Mapping[str, Tensor], inputs: Sequence[Tensor], module: StableHLO | None = None) -> Any:
    """Return the outputs and new values of a graph in order."""
    module = module or to_stablehlo(ir)
    given = [*(weights[key] for key in module.weights), *inputs]
    dtypes = [TORCH_DTYPES[tensor.dtype] for tensor in ir.returns.inputs]
    return execute(compiled(module.text), given, dtypes)


def leaves(tree: Any) -> list[Tensor]:
    """Return the tensors of nested inputs or outputs."""
    return [leaf for leaf in pytree.tree_leaves(tree) if isinstance(leaf, Tensor)]


def at_sizes(text: str, arguments: Sequence[Tensor]) -> bytes:
    """Return a module with dynamic sizes at the sizes of some arguments, refined by XLA's own passes."""
    import jax  # noqa: F401  # it registers the dialects
    from jaxlib import _jax

    head = re.search(r"func\.func public @main\((.*)\) -> \((.*)\) \{", text)
    assert head is not None
    wanted = re.findall(r"%[\w.$-]+: (tensor<[^>]*>+)", head[1])
    static = [tensor_type(tensor.shape, dtype_name(tensor.dtype)) for tensor in arguments]
    lines = [
        f'    %a{at} = "stablehlo.convert"(%arg{at}) : ({given}) -> {kind}'
        for at, (given, kind) in enumerate(zip(static, wanted, strict=True))
    ]
    names = ", ".join(f"%a{at}" for at in range(len(wanted)))
    count = len(re.findall("tensor<", head[2]))
    results = ", ".join(f"%r{at}" for at in range(count))
    lines.append(f"    {results} = func.call @body({names}) : ({', '.join(wanted)}) -> ({head[2]})")
    shown = ", ".join(f"%arg{at}: {given}" for at, given in enumerate(static))
    main = [f"  func.func public @main({shown}) -> ({head[2]}) {{", *lines, f"    return {results} : {head[2]}", "  }"]
    body = text.replace("func.func public @main", "func.func private @body").rstrip().removesuffix("}")
    whole = "\n".join([body, *main, "}"])
    return bytes(
        _jax.mlir.refine_polymorphic_shapes(whole.encode(), enable_shape_assertions=True, validate_static_shapes=True)
    )
