"""Files of single ranks from shared traces, for simulators that read a file for each rank, such as ASTRA-sim."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch_ir.errors import CommandError, SerializationError
from torch_ir.ir.files.atomic_write import write_bytes, write_text
from torch_ir.ir.json.json_fields import field
from torch_ir.ir.json.json_text import parse_document, read_bytes, read_text
from torch_ir.simulators.chakra import FORMAT, INDEX
from torch_ir.simulators.chakra_file import changed_trace

_MOST_RANKS = 1 << 22
_MOST_AXES = 64
_PEERS = ("comm_src", "comm_dst")


@dataclass(frozen=True)
class Ranks:
    """The numbering of ranks: `(replica * stages + stage) * mesh + position`, the last mesh axis fastest."""

    count: int
    stages: int
    mesh: Mapping[str, int]

    @property
    def positions(self) -> int:
        return math.prod(self.mesh.values())

    def stage(self, rank: int) -> int:
        return rank // self.positions % self.stages

    def shift(self, rank: int) -> int:
        """Return what is added to the ranks in a shared file."""
        return rank - self.stage(rank) * self.positions

    def group(self, rank: int, axis: str) -> list[int]:
        """Return the ranks with which a rank communicates along an axis."""
        step = 1
        for name, size in reversed(list(self.mesh.items())):
            if name == axis:
                first = rank - rank // step % size * step
                return list(range(first, first + size * step, step))
            step *= size
        raise SerializationError(f"process group {axis!r:.60} is not a mesh axis", "$.mesh", rule="R4")


def write_ranks(
    folder: str | os.PathLike[str], ranks: Iterable[int], target: str | os.PathLike[str], name: str = "workload"
) -> dict[str, list[int]]:
    """Write `<name>.<rank>.et` for these ranks, and `comm_group.json` with the ranks of each process group.

    Return the groups. The numbers of groups are the same for all ranks of the index.
    """
    numbering = _numbering(Path(folder))
    shared: dict[int, bytes] = {}
    numbers: dict[tuple[int, str], str] = {}  # of the group of a rank along an axis
    groups: dict[str, list[int]] = {}
    for rank in ranks:
        if not 0 <= rank < numbering.count:
            raise CommandError(f"unknown rank {rank}; the traces are of {numbering.count} ranks, numbered from 0")
        stage = numbering.stage(rank)
        if stage not in shared:
            shared[stage] = read_bytes(Path(folder) / f"stage{stage}.et", follow=False)

        def of_rank(attr: str, value: Any, rank: int = rank) -> Any:
            if attr in _PEERS:
                return value + numbering.shift(rank)
            if attr != "pg_name":
                return value
            if (rank, value) not in numbers:
                members = numbering.group(rank, value)
                number = str(list(numbering.mesh).index(value) * numbering.count + members[0])
                numbers[rank, value], groups[number] = number, members
            return numbers[rank, value]

        write_bytes(Path(target) / f"{name}.{rank}.et", changed_trace(shared[stage], of_rank))
    write_text(Path(target) / "comm_group.json", json.dumps(groups) + "\n")
    return groups


def _numbering(folder: Path) -> Ranks:
    record = parse_document(read_text(folder / INDEX, follow=False))
    if record.get("format") != FORMAT:
        raise SerializationError(f"format is {record.get('format')!r:.60}, not {FORMAT!r}", "$.format", rule="R4")
    count, stages = field(record, "ranks", int, "$"), field(record, "stages", int, "$")
    mesh = field(record, "mesh", dict, "$")
    found = Ranks(count, stages, mesh)
    is_counted = all(type(size) is int and 0 < size <= _MOST_RANKS for size in (count, stages, *mesh.values()))
    if not is_counted or len(mesh) > _MOST_AXES or count % (found.positions * stages):
        raise SerializationError("the numbers of ranks, stages and the mesh do not fit together", "$.ranks", rule="R4")
    return found
