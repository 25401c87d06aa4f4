"""Run a graph in a child process, so that a crash, hang or excessive demand does no harm: rule R20.

The child gets the graph, its inputs and its weights as data, and an empty working folder. Its reply is trusted only as
far as it matches what the graph declares.
"""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from torch_ir.errors import ExecutionError
from torch_ir.ir import IR, Limits, TensorMeta
from torch_ir.ir.files.temporary_folders import TemporaryFolder, explained
from torch_ir.ir.graph.attr_types import DTYPES
from torch_ir.ops.tensor_data import plain_tensors
from torch_ir.ops.torch_types import dtype_name
from torch_ir.processes.process_end import ending
from torch_ir.processes.program import Program, python_command
from torch_ir.run.compiled_plan import Sizes
from torch_ir.run.memory_check import memory_limit
from torch_ir.run.numeric_settings import VARIABLES, settings
from torch_ir.run.reply import Reply, known_size
from torch_ir.run.storage_inputs import counted_inputs, refuse_parts
from torch_ir.run.stored import StoredTensor, Weight
from torch_ir.run.weight_files import fit_weights

_MAIN = "torch_ir.run.isolated_child:main"
_PATIENCE = 300.0  # seconds for starting Python and torch, not counted as the run
_MESSAGES = 1 << 26  # bytes that a child may write in addition to its outputs
# Library paths, how threads wait, and what affects the bits of a result; nothing else is passed on.
_ENVIRONMENT = ("LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "SYSTEMROOT", "OMP_WAIT_POLICY", *VARIABLES)


def run_isolated(
    ir: IR,
    values: Sequence[Any],
    weights: Mapping[str, Weight] | str,
    constants: Mapping[str, torch.Tensor],
    sizes: Sizes,
    limits: Limits,
) -> tuple[Any, ...]:
    """Return the outputs of one run in a child process; `weights` may be a path, which the child reads."""
    if not isinstance(weights, str):
        fit_weights(ir, weights, constants)  # report wrong weights before starting a child
    refuse_parts(ir, counted_inputs(ir), values)
    with TemporaryFolder() as folder:
        request, empty = folder / "request.pt", folder / "empty"
        content = _request(ir, values, weights, constants, limits)
        with explained():
            empty.mkdir()
            torch.save(content, request)
        most = _most(ir.graph_outputs, sizes, limits) + _MESSAGES
        command = python_command(_MAIN, str(request), str(memory_limit(limits)), options=("-I", "-B"))
        child = Program(command, folder=empty, environment=_environment(empty), most_bytes=most)
        try:
            is_in_time = child.wait(limits.seconds, start=_PATIENCE)
        finally:
            status = child.end()
    reply = Reply(child.stdout)
    place = reply.place(child.stderr)
    if not is_in_time:
        raise ExecutionError(f"the isolated run took more than {limits.seconds:g} s{place}")
    if child.is_over_limit:
        raise ExecutionError("the isolated run returned more data than the graph declares")
    if status or not reply.is_whole:
        raise ExecutionError(f"the isolated run {ending(status, place, child.stderr)}")
    return reply.outputs(ir.graph_outputs, sizes)


def _environment(folder: Path) -> dict[str, str]:
    kept = {name: os.environ[name] for name in _ENVIRONMENT if name in os.environ}
    return {**kept, "TMPDIR": str(folder), "MALLOC_ARENA_MAX": "2"}  # arenas reserve address space in vain


def _request(
    ir: IR,
    values: Sequence[Any],
    weights: Mapping[str, Weight] | str,
    constants: Mapping[str, torch.Tensor],
    limits: Limits,
) -> dict[str, Any]:
    """Return what the child needs, as plain data and tensors."""
    keys = {key for param in ir.params for key in (str(param.key), *param.stored_keys, param.name)}
    given = {} if isinstance(weights, str) else plain_tensors(weights)
    needed = {key: value for key, value in given.items() if key in keys}
    stored = {key: _where(value) for key, value in needed.items() if isinstance(value, StoredTensor)}
    return {
        "ir": ir.to_json(),
        "inputs": [_alone(value) for value in values],
        "path": os.path.abspath(weights) if isinstance(weights, str) else None,
        "weights": {key: _alone(value) for key, value in needed.items() if key not in stored},
        "stored": stored,
        "constants": {key: _alone(value) for key, value in constants.items() if key in keys},
        "settings": settings(),
        "random": torch.get_rng_state(),
        "limits": dataclasses.asdict(limits),
    }


def _alone(value: Any) -> Any:
    """Prepare a value for sending: a tensor without the rest of its storage."""
    if not isinstance(value, torch.Tensor):
        return value
    if value.device.type != "cpu":
        raise ExecutionError(f"an isolated run needs CPU tensors, but got one on {value.device}")
    value = value.detach()
    is_part = value.layout == torch.strided and value.untyped_storage().nbytes() > value.nbytes
    return value.clone() if is_part else value


def _where(weight: StoredTensor) -> list[Any]:
    path = os.path.abspath(weight.path)
    return [path, dtype_name(weight.dtype), list(weight.shape), weight.offset, list(weight.stamp)]


def _most(outputs: Sequence[TensorMeta], sizes: Sizes, limits: Limits) -> int:
    """Return the bytes of the outputs; a data-dependent size may be as large as the memory."""
    limit = memory_limit(limits)
    counts = (math.prod(known_size(dim, sizes, limit) for dim in tensor.shape) for tensor in outputs)
    return min(limit, sum(DTYPES[tensor.dtype] * count for tensor, count in zip(outputs, counts, strict=True)))
