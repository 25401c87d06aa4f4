"""`torch-ir weights`: compare a checkpoint with the weights that a graph needs, without reading a tensor."""

from __future__ import annotations

import argparse
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

from torch_ir.cli.progress import show_progress
from torch_ir.cli.verb import add_json, argument, load_graph, show

SUMMARY = "compare a checkpoint with the weights of a graph"
EXAMPLES = """
check model.json model.safetensors.index.json
check model.json path/to/checkpoint
check model.json weights.pt --json
"""
_MOST_SHOWN = 20


def add_arguments(parser: argparse.ArgumentParser) -> None:
    argument(parser, "action check", "compare keys, shapes and dtypes", choices=("check",))
    argument(parser, "file FILE", "an IR file")
    argument(
        parser, "checkpoint CHECKPOINT", "a .safetensors, .gguf, .pt or .bin file, an index of shards, or a folder"
    )
    add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    ir = load_graph(arguments.file)
    show_progress(f"reading the headers of {arguments.checkpoint}")
    from torch_ir.run.weight_files import UNEXPECTED, compare_headers, read_headers

    start = time.perf_counter()
    headers = read_headers(arguments.checkpoint)
    misfits = compare_headers(ir, headers)
    counts = Counter(misfit.kind for misfit in misfits)
    record = {
        "fits": set(counts) <= {UNEXPECTED},
        "tensors": len(headers),
        "fitting": len(headers) - len({misfit.key for misfit in misfits if misfit.key in headers}),
        "problems": [misfit._asdict() for misfit in misfits],
        "seconds": round(time.perf_counter() - start, 3),
    }
    show(arguments, lambda: record, lambda: "\n".join(_lines(record, counts)))
    return 0 if record["fits"] else 1


def _lines(record: dict[str, Any], counts: Counter[str]) -> Iterator[str]:
    verdict = "the checkpoint fits the graph" if record["fits"] else "the checkpoint does not fit the graph"
    listed = ", ".join(f"{count:,} {_LABELS[kind]}" for kind, count in sorted(counts.items()))
    yield f"{verdict}: {record['fitting']:,} of {record['tensors']:,} tensors are used as they are" + (
        f"; {listed}" if listed else ""
    )
    for kind in sorted(counts):
        found = [problem["text"] for problem in record["problems"] if problem["kind"] == kind]
        yield from (f"  {text}" for text in found[:_MOST_SHOWN])
        if len(found) > _MOST_SHOWN:
            yield f"  ... {len(found) - _MOST_SHOWN:,} more {_LABELS[kind]}; --json lists all"


_LABELS = {
    "missing": "missing",
    "unexpected": "unexpected",
    "shape": "of another shape",
    "dtype": "of another dtype",
    "unread": "unread",
}
