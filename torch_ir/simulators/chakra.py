"""Chakra execution traces of a graph, a sharded graph or a pipeline: a file per stage, shared by all its ranks.

    to_chakra(shard(ir, plan, {"tp": 8}), "traces", replicas=4, device=Roofline.parse("peak=990T,bw=3.35T"))

All ranks of a mesh run one graph, and replicas run the same again, so that the traces of a stage differ only in the
ranks that they name: `index.json` says which ranks use a file, and `write_ranks` writes the file of a rank.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch_ir.analysis import Roofline
from torch_ir.errors import CommandError
from torch_ir.ir import IR
from torch_ir.ir.files.atomic_write import write_bytes, write_text
from torch_ir.ir.graph.given_graph import require_graph
from torch_ir.pipeline import is_pipeline, sends_of, stage_of
from torch_ir.simulators.chakra_file import VERSION, trace_bytes
from torch_ir.simulators.trace_nodes import Message, TraceNode, trace_nodes

INDEX = "index.json"
FORMAT = "torch-ir-chakra"
_MOST_RANKS = (1 << 31) - 1


def to_chakra(
    ir: IR,
    folder: str | os.PathLike[str],
    *,
    sizes: Mapping[str, int] | None = None,
    device: Roofline | None = None,
    replicas: int = 1,
) -> dict[str, Any]:
    """Write the traces and `index.json` into a folder; return the index.

    A compute node has its FLOPs (`num_ops`) and bytes (`tensor_size`), and with a device, the roofline time. Ranks are
    numbered `(replica * stages + stage) * mesh + position`. In a shared file, the ranks of senders and receivers are
    those of the first rank of the stage, and a process group has the name of its mesh axis.
    """
    require_graph(ir, "to_chakra")
    if replicas < 1:
        raise CommandError(f"replicas must be at least 1, not {replicas}")
    mesh = math.prod(ir.mesh.values())
    ranks = replicas * mesh * (len(ir.nodes) if is_pipeline(ir) else 1)
    if ranks > _MOST_RANKS:
        raise CommandError(f"the traces would be of {ranks} ranks, more than the {_MOST_RANKS} of Chakra")
    stages = _stages(ir, mesh, sizes or {}, device)
    traces = []
    for number, nodes in enumerate(stages):
        file = f"stage{number}.et"
        write_bytes(Path(folder) / file, trace_bytes(nodes))
        kinds = [node.kind for node in nodes]
        traces.append(
            {"file": file, "stage": number, "nodes": {kind: kinds.count(kind) for kind in sorted(set(kinds))}}
        )
    index = {
        "format": FORMAT,
        "version": 1,
        "schema": VERSION,
        "model_name": ir.model_name,
        "ranks": ranks,
        "replicas": replicas,
        "stages": len(stages),
        "mesh": dict(ir.mesh),
        "traces": traces,
    }
    write_text(Path(folder) / INDEX, json.dumps(index, indent=2) + "\n")
    return index


def _stages(ir: IR, mesh: int, sizes: Mapping[str, int], device: Roofline | None) -> list[list[TraceNode]]:
    """Return the trace of the first rank of each stage; a graph that is not a pipeline is one stage."""
    if not is_pipeline(ir):
        return [trace_nodes(ir, sizes, device)]
    sends = list(enumerate(sends_of(ir)))
    return [
        trace_nodes(
            stage_of(ir, number),
            sizes,
            device,
            rank=number * mesh,
            receives=[Message(send.value, send.source * mesh, tag) for tag, send in sends if send.target == number],
            sends=[Message(send.value, send.target * mesh, tag) for tag, send in sends if send.source == number],
        )
        for number in range(len(ir.nodes))
    ]
