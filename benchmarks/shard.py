"""Sharding of large language models: time, and memory, FLOPs and traffic per rank."""

import gzip
import json
import sys
import time
from collections.abc import Callable
from typing import Any

from benchmarks.measure import forget_peak, measured_alone, median_time, memory, table

HEADER = [
    "model", "plan", "ranks", "construction", "graph", "shard", "shard, flat", "parameters per rank", "FLOPs per rank",
    "collectives", "sent per rank", "file", "peak memory over imports",
]  # fmt: skip
PROMPT = 128


def llama_405b() -> Any:
    import torch
    from transformers import LlamaConfig

    return LlamaConfig(
        vocab_size=128256,
        hidden_size=16384,
        intermediate_size=53248,
        num_hidden_layers=126,
        num_attention_heads=128,
        num_key_value_heads=8,
        max_position_embeddings=131072,
        dtype=torch.bfloat16,
    )


def mixtral() -> Any:
    import torch
    from transformers import MixtralConfig

    return MixtralConfig(dtype=torch.bfloat16)


def deepseek_v3() -> Any:
    import torch
    from transformers import DeepseekV3Config

    return DeepseekV3Config(dtype=torch.bfloat16)


CASES: dict[str, tuple[Callable[[], Any], str, int]] = {
    "Llama-405B": (llama_405b, "tensor", 8),
    "Mixtral-8x7B": (mixtral, "tensor", 8),
    "Mixtral-8x7B, experts": (mixtral, "expert", 8),
    "DeepSeek-V3, experts": (deepseek_v3, "expert", 8),
}


def run(repeats: int = 5) -> str:
    """Measure each model in a separate process."""
    rows = []
    for name, (_, plan, ranks) in CASES.items():
        found = measured_alone("benchmarks.shard", name, repeats)
        rows.append(
            [
                name,
                plan,
                ranks,
                median_time([found["construction"]]),
                median_time([found["graph"]]),
                median_time(found["shard"]),
                median_time(found["flat"]),
                f"{found['params'] / 1e9:.1f} B of {found['all_params'] / 1e9:.1f} B",
                f"{found['flops'] / 1e12:.1f} T of {found['all_flops'] / 1e12:.1f} T",
                found["collectives"],
                f"{found['sent'] / 1e9:.2f} GB",
                f"{found['file'] / 1e3:.0f} kB",
                f"{found['grown'] / 1e6:.0f} MB",
            ]
        )
    return table(HEADER, rows)


def child(name: str, repeats: int) -> dict[str, Any]:
    """Build one model on meta, capture it, and shard it `repeats` times, with layers as calls and flat."""
    import torch

    import torch_ir
    from torch_ir.llm.extraction import build_on_meta

    make, plan_kind, ranks = CASES[name]
    config = make()
    config.use_cache = False
    forget_peak()
    before = memory("VmRSS")
    found: dict[str, Any] = {}
    model = _timed(found, "construction", lambda: build_on_meta(config))
    ids = torch.zeros(1, PROMPT, dtype=torch.int64)
    flat = _timed(found, "graph", lambda: torch_ir.extract_ir(model, (), kwargs={"input_ids": ids}, strict=False))
    folded = flat.fold_blocks()
    plan = torch_ir.transformers_plan(config, flat, expert_parallel=plan_kind == "expert")
    for key, graph in (("shard", folded), ("flat", flat)):
        samples: dict[str, Any] = {}
        found[key] = []
        for _ in range(repeats):
            _timed(samples, key, lambda graph=graph: torch_ir.shard(graph, plan, {"tp": ranks}))
            found[key].append(samples[key])
    found["grown"] = memory("VmHWM") - before
    sharded = torch_ir.shard(folded, plan, {"tp": ranks})
    report, whole = torch_ir.cost_report(sharded), torch_ir.cost_report(folded)
    found |= {"params": report.total.params, "all_params": whole.total.params}
    found |= {"flops": report.total.work.flops, "all_flops": whole.total.work.flops}
    found["sent"] = report.total.work.communication
    found["collectives"] = ", ".join(f"{row.count} {row.name.split('.')[1]}" for row in report.collectives)
    found["file"] = len(gzip.compress(sharded.to_json().encode()))
    return found


def _timed(found: dict[str, Any], key: str, call: Callable[[], Any]) -> Any:
    start = time.perf_counter()
    result = call()
    found[key] = time.perf_counter() - start
    return result


if __name__ == "__main__":
    print(json.dumps(child(sys.argv[1], int(sys.argv[2]))))
