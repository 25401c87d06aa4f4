"""The child of an isolated run: it reads one request from a file, runs it under limits, and writes one reply.

A reply is lines of JSON on the former standard output: "ready" once torch is loaded, then which lines of which program
are which nodes, to locate a crash, and finally an error or the descriptions of the outputs, followed by their bytes.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO

import torch

from torch_ir.errors import ExecutionError, TorchIRError
from torch_ir.ir import IR, Limits
from torch_ir.ops.tensor_data import from_tensor
from torch_ir.ops.torch_types import TORCH_DTYPES, dtype_name
from torch_ir.processes.process_end import end_with_parent, write_stack_at_end
from torch_ir.run.confine import limit
from torch_ir.run.executor import IRExecutor
from torch_ir.run.numeric_settings import apply_settings
from torch_ir.run.stored import StoredTensor, Weight
from torch_ir.run.weight_files import load_weights

_BOUNDS = {"RLIMIT_FSIZE": 0, "RLIMIT_NOFILE": 128}


def main(request_file: str, memory: str) -> None:
    """Run the request in a file with so many bytes of memory."""
    write_stack_at_end(2)
    reply = os.fdopen(os.dup(1), "wb")
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(null, 1)
    end_with_parent()
    _write(reply, {"ready": True})
    tempfile.tempdir = os.getcwd()  # Python would search for a folder by writing to it
    limit(int(memory), _BOUNDS)  # and forbid writing files
    try:
        request = torch.load(request_file, weights_only=True)
        apply_settings(request["settings"])
        _run(request, reply)
    except TorchIRError as error:
        _write(reply, {"error": str(error), "kind": type(error).__name__})
    except MemoryError:
        _write(reply, {"error": "out of memory within the limit", "kind": "ExecutionError"})
    reply.flush()
    os._exit(0)  # no cleanup is needed, and a damaged process could not do it


def _run(request: dict[str, Any], reply: BinaryIO) -> None:
    ir = IR.from_json(request["ir"], Limits(**request["limits"]))
    executor = IRExecutor(ir, None, request["constants"], limits=Limits(**request["limits"]))
    _send_places(executor, reply)
    executor.load_weights_from_state_dict(_weights(request))
    _send_places(executor, reply)  # weights in files make it another program
    torch.set_rng_state(request["random"])
    _answer(executor.run(request["inputs"]).outputs, reply)


def _send_places(executor: IRExecutor, reply: BinaryIO) -> None:
    places = executor.places().items()
    found = {file: {line: repr(node) for line, node in lines.items()} for file, lines in places}
    _write(reply, {"places": found})


def _weights(request: dict[str, Any]) -> dict[str, Weight]:
    if request["path"] is not None:
        return {**load_weights(request["path"])}
    stored = {
        key: StoredTensor(Path(path), TORCH_DTYPES[dtype], tuple(shape), offset, tuple(stamp))
        for key, (path, dtype, shape, offset, stamp) in request["stored"].items()
    }
    return {**request["weights"], **stored}


def _answer(outputs: Sequence[Any], reply: BinaryIO) -> None:
    """Write the descriptions of the outputs, then the bytes of the tensors among them."""
    records: list[Any] = []
    for output in outputs:
        if isinstance(output, torch.Tensor):
            records.append([dtype_name(output.dtype), list(output.shape)])
        elif type(output) in (int, bool):
            records.append(output)
        elif isinstance(output, float):
            records.append({"float": output.hex()})
        else:
            raise ExecutionError(f"an output is a {type(output).__name__}, which cannot leave an isolated run")
    _write(reply, {"outputs": records})
    for output in outputs:
        if isinstance(output, torch.Tensor):
            reply.write(from_tensor(output).raw)


def _write(reply: BinaryIO, record: Any) -> None:
    reply.write(json.dumps(record).encode() + b"\n")
    reply.flush()
