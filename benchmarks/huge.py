"""Full-size language models, from construction to a loaded file, with no weights."""

import os
import resource
import tempfile
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import torch
from torch import nn

import torch_ir
from benchmarks.measure import table
from benchmarks.models import llama, tokens


def llama_405b() -> nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    return LlamaForCausalLM(
        LlamaConfig(
            num_hidden_layers=126, hidden_size=16384, intermediate_size=53248, num_attention_heads=128,
            num_key_value_heads=8, vocab_size=128256, use_cache=False,
        )
    )  # fmt: skip


def deepseek_v3() -> nn.Module:
    from transformers import DeepseekV3Config, DeepseekV3ForCausalLM

    return DeepseekV3ForCausalLM(DeepseekV3Config(use_cache=False))


MODELS: dict[str, Callable[[], nn.Module]] = {
    "Llama-8B": lambda: llama(layers=32),
    "Llama-405B": llama_405b,
    "DeepSeek-V3": deepseek_v3,
}


def run() -> str:
    """Seconds of each step, the size of the file, and the peak memory of the process so far."""
    rows = []
    inputs = {name: tensor.to("meta") for name, tensor in tokens().items()}
    for name, build in MODELS.items():
        marks = [time.perf_counter()]
        with torch_ir.meta_init():
            model = build().eval()
        marks.append(time.perf_counter())
        ir = torch_ir.extract_ir(model, (), kwargs=inputs, strict=False)
        marks.append(time.perf_counter())
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "model.json"
            ir.save(file)
            marks.append(time.perf_counter())
            torch_ir.IR.load(file)
            marks.append(time.perf_counter())
            size = os.path.getsize(file) / 1e6
        parameters = sum(torch.Size(param.shape).numel() for param in ir.params) / 1e9
        seconds = [f"{after - before:.2f} s" for before, after in pairwise(marks)]
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        rows.append([name, f"{parameters:.0f} B", len(ir.nodes), *seconds, f"{size:.1f} MB", f"{peak:.0f} MiB"])
    return table(["model", "parameters", "nodes", "build", "extract", "save", "load", "file", "peak memory"], rows)
