"""The training step of Llama-405B: CPU seconds to capture, shard and split it without weights, and memory by rank.

`python -m benchmarks.training` prints the table; `--layers 4 --stages 2` takes a shorter model of the same width.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from typing import Any

import torch

from torch_ir import extract_training, liveness, meta_init, shard, split, training_report, transformers_plan
from torch_ir.ir import IR

TOKENS = 128


def main() -> int:
    from transformers import LlamaConfig, LlamaForCausalLM

    parser = argparse.ArgumentParser(description=__doc__)
    for name, number in (("layers", 126), ("ranks", 8), ("stages", 10), ("micro-batches", 20)):
        parser.add_argument(f"--{name}", type=int, default=number)
    options = parser.parse_args()
    config = LlamaConfig(
        num_hidden_layers=options.layers, hidden_size=16384, intermediate_size=53248, vocab_size=128256,
        num_attention_heads=128, num_key_value_heads=8, use_cache=False,
    )  # fmt: skip
    with meta_init():
        model = LlamaForCausalLM(config).to(torch.bfloat16).train()
    ids = torch.empty(1, TOKENS, dtype=torch.int64, device="meta")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    given = {"input_ids": ids, "labels": ids}
    ir = timed("captured", lambda: extract_training(model, (), kwargs=given, optimizer=optimizer, blocks="function"))
    print(f"{sum(1 for _ in ir.at_level('aten').nodes):,} nodes, {len(ir.to_json()) / 1e6:.1f} MB of JSON")
    show_peaks(ir)
    plan = transformers_plan(config, ir, ranks=options.ranks)
    rank = timed(f"sharded for TP-{options.ranks}", lambda: shard(ir, plan, {"tp": options.ranks}))
    show_peaks(rank)
    pipeline = timed(f"split for PP-{options.stages}", lambda: split(rank, options.stages))
    print(timed("reported", lambda: training_report(pipeline, options.micro_batches)))
    return 0


def timed(what: str, run: Callable[[], Any]) -> Any:
    wall, cpu = time.perf_counter(), time.process_time()
    result = run()
    print(f"{what}: {time.process_time() - cpu:.1f} s CPU ({time.perf_counter() - wall:.1f} s wall)")
    return result


def show_peaks(ir: IR) -> None:
    """Print what is held, and the peak of each entry point beside it."""
    entries = {**{name: ir.functions[name] for name in ("forward", "backward")}, "step": ir}
    peaks = ", ".join(f"{name} {int(liveness(graph).peak) / 1e9:,.1f} GB" for name, graph in entries.items())
    print(f"weights and optimiser state {int(liveness(ir).weights) / 1e9:,.0f} GB; peak beside them: {peaks}")


if __name__ == "__main__":
    sys.exit(main())
