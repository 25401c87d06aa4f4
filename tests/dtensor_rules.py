"""Collectives that torch's DTensor runs for the samples of our sharding rules: `python -m tests.dtensor_rules EVERY`.

It has a process of its own, as process groups, even those that are only played, are for all of a process. It prints a
line of JSON for every Nth way to cut the inputs of a sample: its name, the placements, and the collectives or an error.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import Any

import torch
from torch import distributed
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.debug import CommDebugMode
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._pytree import tree_leaves

from tests.test_shard_rules import SAMPLES, Of, mixed

RANKS = 2
SEARCHED_FOR_MINUTES = frozenset(name for name in SAMPLES if "attention" in name or "heads" in name)
Way = tuple[str, tuple[str, ...]]  # a sample and the placements of its inputs


def ways(every: int) -> list[Way]:
    """Return every Nth way to cut the inputs of the samples."""
    names = [name for name in SAMPLES if name not in SEARCHED_FOR_MINUTES]
    return [(name, places) for name in names for places in mixed(SAMPLES[name][1])][::every]


def collectives_of(way: Way, mesh: Any) -> dict[str, int] | str:
    """Return the collectives of one run whose results all ranks have whole; torch's error where it cannot."""
    name, places = way
    function, shapes = SAMPLES[name]
    given = [_cut(torch.randn(shape), place, mesh) for shape, place in zip(shapes, places, strict=True)]
    try:
        with CommDebugMode() as heard, torch.no_grad():
            for result in tree_leaves(Of(function, 0)(*given)):
                if isinstance(result, DTensor):
                    result.redistribute(mesh, [Replicate()])
    except (RuntimeError, NotImplementedError) as error:
        return str(error).splitlines()[0]
    return {str(kind).rpartition(".")[2]: count for kind, count in heard.get_comm_counts().items()}


def _cut(value: torch.Tensor, place: str, mesh: Any) -> DTensor:
    """Return the piece of the first rank."""
    if place == "replicate":
        return DTensor.from_local(value, mesh, [Replicate()], run_check=False)
    dim = int(place.removeprefix("shard(").removesuffix(")"))
    piece = value.chunk(RANKS, dim)[0].contiguous()
    return DTensor.from_local(piece, mesh, [Shard(dim)], run_check=False)


def played(every: int) -> Iterator[tuple[Way, dict[str, int] | str]]:
    distributed.init_process_group("fake", rank=0, world_size=RANKS, store=FakeStore())
    mesh = init_device_mesh("cpu", (RANKS,))
    for way in ways(every):
        yield way, collectives_of(way, mesh)
    distributed.destroy_process_group()


if __name__ == "__main__":
    for (name, places), found in played(int(sys.argv[1])):
        print(json.dumps([name, places, found]), flush=True)
