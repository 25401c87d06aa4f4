"""Ways through the library as the sweep runs them: prepare a graph, and return its run.

`PATHS` need no other runtime. `EXPORTED` are formats, in the runtimes that the tests have for them.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tests.arena_runs import ArenaRun
from torch_ir import IR, IRExecutor, load_ir, optimize, split, to_opset, to_stablehlo, to_torch
from torch_ir.errors import ConversionError
from torch_ir.ops.torch_types import TORCH_DTYPES
from torch_ir.passes.optimize_levels import LEVELS

Run = Callable[[Sequence[Tensor]], Sequence[Any]]
Prepare = Callable[[IR, Mapping[str, Tensor]], Run]


def executed(ir: IR, weights: Mapping[str, Tensor]) -> Run:
    executor = IRExecutor(ir, weights)
    return lambda values: executor.run(values).outputs


def in_place(ir: IR, weights: Mapping[str, Tensor]) -> Run:
    """The executor that writes to inputs; they must have their new values afterwards."""
    executor = IRExecutor(ir, weights, in_place=True)

    def run(values: Sequence[Tensor]) -> Sequence[Any]:
        new = IRExecutor(ir, weights).run([value.clone() for value in values]).mutations
        outputs = executor.run(values).outputs
        for target, value in zip(ir.graph_inputs, values, strict=True):
            assert target not in new or torch.equal(value.nan_to_num(), new[target].nan_to_num()), target.name
        return outputs

    return run


def _saved(suffix: str, ir: IR, weights: Mapping[str, Tensor]) -> Run:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"graph{suffix}"
        ir.save(path)
        return executed(load_ir(path), weights)


def _torch_module(ir: IR, weights: Mapping[str, Tensor]) -> Run:
    model = to_torch(ir, weights)
    return lambda values: torch.utils._pytree.tree_leaves(model(*values))


def _in_xla(ir: IR, weights: Mapping[str, Tensor]) -> Run:
    from tests.stablehlo_models.xla import compiled, execute

    module, held = to_stablehlo(ir), {param.key: weights[param.name] for param in ir.params if param.name in weights}
    dtypes = [TORCH_DTYPES[tensor.dtype] for tensor in ir.returns.inputs]
    try:
        executable = compiled(module.text)
    except (RuntimeError, ValueError) as error:  # of XLA
        raise ConversionError(f"XLA does not compile it: {' '.join(str(error).split())}") from None
    given = [held[key] for key in module.weights]
    return lambda values: execute(executable, [*given, *values], dtypes)


PATHS: dict[str, Prepare] = {
    "executor": executed,
    **{
        f"level {level}": lambda ir, weights, level=level: executed(optimize(ir, level)[0], weights) for level in LEVELS
    },
    "core-aten": lambda ir, weights: executed(to_opset(ir, "core-aten")[0], weights),
    "prims": lambda ir, weights: executed(to_opset(ir, "prims")[0], weights),
    "json": partial(_saved, ".json"),
    "in place": in_place,
    "arena": lambda ir, weights: ArenaRun(ir, weights).run,
    "pipeline": lambda ir, weights: executed(split(ir, 3, anywhere=True), weights),
    "torch module": _torch_module,
}
EXPORTED: dict[str, Prepare] = {"stablehlo": _in_xla}
