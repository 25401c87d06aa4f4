"""One rank of this machine: it joins the others, then runs each graph that it is told of, until nobody asks."""

from __future__ import annotations

import json
import math
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from torch import distributed
from torch.distributed.device_mesh import init_device_mesh

from torch_ir.errors import TorchIRError, first_line
from torch_ir.ir import IR
from torch_ir.run.executor import IRExecutor

_PATIENCE = timedelta(seconds=120)


def main() -> None:
    """Be the rank that the arguments say: number, how many there are, and a folder that all of them share."""
    rank, count, folder = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
    reply = sys.stdout
    sys.stdout = sys.stderr
    store = (folder / "store").as_uri()
    distributed.init_process_group("gloo", init_method=store, rank=rank, world_size=count, timeout=_PATIENCE)
    meshes: dict[tuple[tuple[str, int], ...], Any] = {}
    for line in sys.stdin:
        request = Path(line.strip())
        try:
            answer: dict[str, str] = {"outputs": str(_run(request, rank, meshes))}
        except TorchIRError as error:
            answer = {"error": str(error)}
        except Exception as error:  # another rank went, or a kernel refused: all must hear of it
            answer = {"error": f"{type(error).__name__}: {first_line(error)}"}
        print(json.dumps(answer), file=reply, flush=True)
    distributed.destroy_process_group()


def _run(request: Path, rank: int, meshes: dict[tuple[tuple[str, int], ...], Any]) -> Path:
    told = torch.load(request, weights_only=True, mmap=True)
    ir = IR.from_json(told["ir"])
    axes = tuple(ir.mesh.items())
    if axes not in meshes:
        groups = distributed.get_world_size() // math.prod(ir.mesh.values())
        meshes[axes] = init_device_mesh("cpu", (groups, *ir.mesh.values()), mesh_dim_names=("_groups", *ir.mesh))
    executor = IRExecutor(ir, mesh=meshes[axes])
    if told["path"] is not None:
        executor.load_weights(told["path"])
    else:
        executor.load_weights_from_state_dict(told["weights"])
    pairs = zip(ir.graph_inputs, told["inputs"], strict=True)
    pieces = [
        executor.rank.piece(ir, tensor, value) if isinstance(value, torch.Tensor) else value for tensor, value in pairs
    ]
    outputs = request.with_suffix(f".{rank}.pt")
    torch.save([_alone(value) for value in executor.run(pieces).outputs], outputs)
    return outputs


def _alone(value: Any) -> Any:
    return value.clone() if isinstance(value, torch.Tensor) else value
