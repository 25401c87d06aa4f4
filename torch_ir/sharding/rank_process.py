"""One local rank process: join the process group, then run each job until stdin closes."""

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


def main(rank_text: str, count: str, folder: str) -> None:
    """Run a rank, given the number of ranks and a shared folder."""
    rank = int(rank_text)
    reply = sys.stdout
    sys.stdout = sys.stderr
    store = Path(folder, "store").as_uri()
    distributed.init_process_group("gloo", init_method=store, rank=rank, world_size=int(count), timeout=_PATIENCE)
    for line in sys.stdin:
        request = Path(json.loads(line))
        try:
            answer: dict[str, str] = {"answer": str(_done(request, rank))}
        except TorchIRError as error:
            answer = {"error": str(error)}
        except Exception as error:  # another rank is gone, or a kernel failed: report it to the parent
            answer = {"error": f"{type(error).__name__}: {first_line(error)}"}
        print(json.dumps(answer), file=reply, flush=True)
    distributed.destroy_process_group()


@cache
def mesh_of(axes: tuple[tuple[str, int], ...]) -> DeviceMesh:
    """Return a mesh with these axes; more ranks form several such meshes."""
    sizes = [size for _, size in axes]
    groups = distributed.get_world_size() // math.prod(sizes)
    return init_device_mesh("cpu", (groups, *sizes), mesh_dim_names=("_groups", *(name for name, _ in axes)))


def _done(request: Path, rank: int) -> Path:
    """Run the function that a request names, and return the file with its result."""
    fields = torch.load(request, weights_only=True, mmap=True)
    module, _, function = fields["job"].partition(":")
    answer = request.with_suffix(f".{rank}.pt")
    torch.save(getattr(importlib.import_module(module), function)(fields), answer)
    return answer
