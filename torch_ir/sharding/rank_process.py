"""One rank of this machine: it joins the others, then does each job that it is told of, until nobody asks."""

from __future__ import annotations

import importlib
import json
import math
import sys
from datetime import timedelta
from functools import cache
from pathlib import Path

import torch
from torch import distributed
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from torch_ir.errors import TorchIRError, first_line

_PATIENCE = timedelta(seconds=120)


def main() -> None:
    """Be the rank that the arguments say: number, how many there are, and a folder that all of them share."""
    rank, count, folder = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
    reply = sys.stdout
    sys.stdout = sys.stderr
    store = (folder / "store").as_uri()
    distributed.init_process_group("gloo", init_method=store, rank=rank, world_size=count, timeout=_PATIENCE)
    for line in sys.stdin:
        request = Path(line.strip())
        try:
            answer: dict[str, str] = {"answer": str(_done(request, rank))}
        except TorchIRError as error:
            answer = {"error": str(error)}
        except Exception as error:  # another rank went, or a kernel refused: all must hear of it
            answer = {"error": f"{type(error).__name__}: {first_line(error)}"}
        print(json.dumps(answer), file=reply, flush=True)
    distributed.destroy_process_group()


@cache
def mesh_of(axes: tuple[tuple[str, int], ...]) -> DeviceMesh:
    """A mesh of the ranks with these axes; where there are more ranks, several such meshes stand side by side."""
    sizes = [size for _, size in axes]
    groups = distributed.get_world_size() // math.prod(sizes)
    return init_device_mesh("cpu", (groups, *sizes), mesh_dim_names=("_groups", *(name for name, _ in axes)))


def _done(request: Path, rank: int) -> Path:
    """Where the answer to a request lies: what the function gives that it names."""
    told = torch.load(request, weights_only=True, mmap=True)
    module, _, function = told["job"].partition(":")
    answer = request.with_suffix(f".{rank}.pt")
    torch.save(getattr(importlib.import_module(module), function)(told), answer)
    return answer
