"""The training step of Llama-405B: seconds of CPU time to capture it without weights, its size and its memory.

`python -m benchmarks.training` prints one line; `--layers 4` takes a shorter model of the same width.
"""

from __future__ import annotations

import argparse
import sys
import time

import torch

from torch_ir import extract_training, liveness, meta_init

TOKENS = 128


def main() -> int:
    from transformers import LlamaConfig, LlamaForCausalLM

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", type=int, default=126)
    config = LlamaConfig(
        num_hidden_layers=parser.parse_args().layers, hidden_size=16384, intermediate_size=53248, vocab_size=128256,
        num_attention_heads=128, num_key_value_heads=8, use_cache=False,
    )  # fmt: skip
    with meta_init():
        model = LlamaForCausalLM(config).to(torch.bfloat16).train()
    ids = torch.empty(1, TOKENS, dtype=torch.int64, device="meta")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    start, cpu = time.perf_counter(), time.process_time()
    given = {"input_ids": ids, "labels": ids}
    ir = extract_training(model, (), kwargs=given, optimizer=optimizer, blocks="function")
    seconds, wall = time.process_time() - cpu, time.perf_counter() - start
    flat = sum(1 for _ in ir.at_level("aten").nodes)
    size = len(ir.to_json())
    peaks = {name: int(liveness(graph).peak) for name, graph in {**_entries(ir), "step": ir}.items()}
    held = sum(_bytes(param) for param in ir.params)
    print(f"{seconds:.1f} s CPU ({wall:.1f} s wall), {flat:,} nodes, {size / 1e6:.1f} MB of JSON")
    print(f"weights and optimiser state {held / 1e9:,.0f} GB; peak beside them:", end=" ")
    print(", ".join(f"{name} {peak / 1e9:,.1f} GB" for name, peak in peaks.items()))
    return 0


def _entries(ir):  # type: ignore[no-untyped-def]  # of the benchmark only
    return {name: ir.functions[name] for name in ("forward", "backward")}


def _bytes(param):  # type: ignore[no-untyped-def]  # likewise
    width = 2 if param.dtype == "bfloat16" else 4
    count = 1
    for dim in param.shape:
        count *= dim
    return count * width


if __name__ == "__main__":
    sys.exit(main())
