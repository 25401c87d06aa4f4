"""Construction and capture of language models of up to a trillion parameters, prefill and decode, without weights."""

import json
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch_ir
from benchmarks.measure import forget_peak, measured_alone, median_time, memory, race, table
from benchmarks.models import torch_export

HEADER = [
    "model", "parameters", "construction", "graph", "nodes", "first call", "median of later calls",
    "peak memory over imports",
]  # fmt: skip
ENTRIES = ("prefill", "decode")
BATCH, PROMPT, CACHE_LENGTH = 1, 128, 256


def mixtral() -> Any:
    from transformers import MixtralConfig

    return MixtralConfig()


def gpt_oss() -> Any:
    from transformers import GptOssConfig

    return GptOssConfig()


def deepseek_v3() -> Any:
    from transformers import DeepseekV3Config

    return DeepseekV3Config()


def kimi_k2() -> Any:
    from transformers import DeepseekV3Config

    return DeepseekV3Config(
        vocab_size=163840,
        num_attention_heads=64,
        num_key_value_heads=64,
        n_routed_experts=384,
        routed_scaling_factor=2.827,
        n_group=1,
        topk_group=1,
        first_k_dense_replace=1,
        max_position_embeddings=131072,
    )


CONFIGS: dict[str, Callable[[], Any]] = {
    "Mixtral-8x7B": mixtral,
    "gpt-oss-120b": gpt_oss,
    "DeepSeek-V3": deepseek_v3,
    "like Kimi-K2": kimi_k2,
}


def run(repeats: int = 5, against: bool = False) -> str:
    """Return times and peak memory of each model, in a separate process; with `against`, also torch.export's."""
    rows = []
    for name in CONFIGS:
        ours = measured_alone("benchmarks.huge", name, "extract_ir", repeats)
        theirs = measured_alone("benchmarks.huge", name, "torch.export", 0) if against else None
        about = [name, f"{ours['parameters'] / 1e9:.0f} B", median_time([ours["construction"]])]
        for entry in ENTRIES:
            spent = [median_time([ours["first"][entry]]), median_time(ours["next"][entry])]
            beside = [median_time([theirs["first"][entry]]) if theirs else "fails"] if against else []
            rows.append([*about, entry, ours["nodes"][entry], *spent, f"{ours['grown'] / 1e6:.0f} MB", *beside])
    return table(HEADER + ["torch.export, once"] * against, rows)


def child(name: str, side: str, repeats: int) -> dict[str, Any]:
    """Build one model and capture both entry points, once cold and `repeats` times warm."""
    from torch_ir.llm.caches import Caches
    from torch_ir.llm.entry_points import DecoderOnly
    from torch_ir.llm.extraction import build_on_meta

    config = CONFIGS[name]()
    forget_peak()
    before, start = memory("VmRSS"), time.perf_counter()
    model = build_on_meta(config)
    found: dict[str, Any] = {"construction": time.perf_counter() - start, "first": {}, "nodes": {}, "next": {}}
    if side == "torch.export":
        model.to("meta")  # it needs all tensors on one device
    calls = DecoderOnly(model, Caches.of(config, CACHE_LENGTH), BATCH, PROMPT)
    prefill = calls.prefill()
    captures: dict[str, Callable[[], Any]] = {}
    for entry in ENTRIES:
        call = prefill if entry == "prefill" else calls.decode(_extract(prefill))
        captures[entry] = partial(_extract if side == "extract_ir" else _export, call)
        start = time.perf_counter()
        graph = captures[entry]()
        found["first"][entry] = time.perf_counter() - start
        found["nodes"][entry] = len(list(graph.nodes))
    found["grown"] = memory("VmHWM") - before
    found["parameters"] = sum(parameter.numel() for parameter in model.parameters())
    if repeats:
        found["next"] = {entry: samples.wall for entry, samples in race(captures, repeats).items()}
    return found


def _extract(call: Any) -> torch_ir.IR:
    return torch_ir.extract_ir(call.model, (), kwargs=call.inputs, strict=False)


def _export(call: Any) -> Any:
    return torch_export(call.model, call.inputs).graph


if __name__ == "__main__":
    print(json.dumps(child(sys.argv[1], sys.argv[2], int(sys.argv[3]))))
