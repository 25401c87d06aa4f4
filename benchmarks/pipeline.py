"""Pipelines: full-size language models cut into stages, and a small one run in two stages."""

import json
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

from benchmarks.measure import measured_alone, median_time, table
from benchmarks.shard import deepseek_v3, llama_405b, mixtral

HEADER = [
    "model", "memory per stage", "split", "split, flat", "stages", "busy", "largest stage", "sent between stages",
]  # fmt: skip
GIB = 1 << 30
CASES: dict[str, tuple[Callable[[], Any], int]] = {
    "Llama-405B": (llama_405b, 80 * GIB),
    "Mixtral-8x7B": (mixtral, 24 * GIB),
    "DeepSeek-V3": (deepseek_v3, 80 * GIB),
}
PROMPT, BATCHES = 128, 32


def run(repeats: int = 5) -> str:
    rows = []
    for name, (_, memory) in CASES.items():
        found = measured_alone("benchmarks.pipeline", name, repeats)
        rows.append(
            [
                name,
                f"{memory // GIB} GiB",
                median_time(found["split"]),
                median_time(found["flat"]),
                found["stages"],
                f"{100 * found['balance']:.1f} %",
                f"{found['held'] / GIB:.1f} GiB",
                f"{found['sent'] / 1e6:.2f} MB",
            ]
        )
    return "\n\n".join([table(HEADER, rows), _running(repeats)])


def child(name: str, repeats: int) -> dict[str, Any]:
    """Build one model on meta, capture it, and cut it `repeats` times, with layers as calls and flat."""
    import torch

    import torch_ir
    from torch_ir.llm.extraction import build_on_meta

    make, memory = CASES[name]
    config = make()
    config.use_cache = False
    ids = torch.zeros(1, PROMPT, dtype=torch.int64)
    flat = torch_ir.extract_ir(build_on_meta(config), (), kwargs={"input_ids": ids}, strict=False)
    folded = flat.fold_blocks()
    found: dict[str, Any] = {"split": [], "flat": []}
    for _ in range(repeats):
        for key, graph in (("split", folded), ("flat", flat)):
            start = time.perf_counter()
            pipeline = torch_ir.split(graph, memory=memory)
            found[key].append(time.perf_counter() - start)
    rows = torch_ir.pipeline_report(pipeline).rows
    found |= {"stages": len(rows), "balance": torch_ir.pipeline_report(pipeline).balance}
    return found | {"held": max(row.memory for row in rows), "sent": max(row.sends for row in rows)}


def _running(repeats: int) -> str:
    """Measure the speed-up of two stages with one thread each over one stage with one thread."""
    import torch
    from transformers import LlamaConfig

    import torch_ir
    from torch_ir.llm.extraction import build_on_meta

    config = LlamaConfig(
        vocab_size=1024, hidden_size=512, intermediate_size=1024, num_hidden_layers=8, num_attention_heads=8,
        num_key_value_heads=8, use_cache=False,
    )  # fmt: skip
    ids = torch.zeros(1, PROMPT, dtype=torch.int64)
    ir = torch_ir.extract_ir(build_on_meta(config), (), kwargs={"input_ids": ids}, strict=False)
    weights = torch_ir.random_weights(ir)
    seconds: dict[int, list[float]] = {1: [], 2: []}
    for _ in range(repeats):
        for stages, samples in seconds.items():
            pipeline = torch_ir.split(ir, stages)
            torch.set_num_threads(stages)  # shared by the ranks
            with torch_ir.LocalRanks(stages) as ranks:
                _, idle, busy = (_taken(pipeline, ids, batches, weights, ranks) for batches in (1, 0, BATCHES))
                samples.append(busy - idle)  # without start-up and loading weights
    whole, halves = (statistics.median(samples) for samples in seconds.values())
    text = f"{BATCHES} batches: {median_time(seconds[1])} in one stage, {median_time(seconds[2])} in two"
    return f"A Llama of 22 M parameters, one thread for each stage; {text}: {whole / halves:.2f} times as fast."


def _taken(pipeline: Any, ids: Any, batches: int, weights: Any, ranks: Any) -> float:
    import torch_ir

    start = time.perf_counter()
    torch_ir.run_pipeline(pipeline, [(ids,)] * batches, weights, ranks=ranks)
    return time.perf_counter() - start


if __name__ == "__main__":
    print(json.dumps(child(sys.argv[1], int(sys.argv[2]))))
