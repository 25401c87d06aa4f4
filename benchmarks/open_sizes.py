"""Extraction with sizes that vary against torch.export with the same sizes."""

import json
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import transformers
from torch import nn
from torch.export import Dim

import torch_ir
from benchmarks.measure import measured_alone, median_time, race, ratios, table
from benchmarks.models import Case, bert_base, llama_405b, resnet50, tokens, vit_base
from torch_ir.llm import extract_llm

HEADER = [
    "model", "sizes that vary", "nodes", "torch.export", "extract_ir", "times faster (range)", "same bytes",
    "first call",
]  # fmt: skip
IMAGES = {0: Dim("batch", max=1024)}
WORDS = {0: Dim("batch", max=1024), 1: Dim("seq", min=2, max=512)}
OPEN: list[tuple[Case, dict[str, Any], str]] = [
    (Case("ResNet-50", resnet50, lambda: {"x": torch.randn(3, 3, 224, 224)}), {"x": IMAGES}, "batch"),
    (
        Case("ViT-base", vit_base, lambda: {"pixel_values": torch.randn(3, 3, 224, 224)}),
        {"pixel_values": IMAGES},
        "batch",
    ),
    (Case("BERT-base", bert_base, partial(tokens, 3)), {"input_ids": WORDS}, "batch, seq"),
]


def llama_32() -> Any:
    from transformers import LlamaConfig

    return LlamaConfig(
        num_hidden_layers=32,
        hidden_size=4096,
        intermediate_size=14336,
        num_attention_heads=32,
        num_key_value_heads=8,
        vocab_size=128256,
    )


def llama_126() -> Any:
    with torch.device("meta"):
        config: Any = llama_405b().config
    config.use_cache = True
    return config


LANGUAGE: dict[str, Callable[[], Any]] = {"Llama, 32 layers": llama_32, "Llama-405B, 126 layers": llama_126}


def run(repeats: int = 3) -> str:
    """Return median times and ratios; language models are prefill and decode, built from their configurations."""
    rows = [_row(case, varying, told, repeats) for case, varying, told in OPEN]
    rows += [_language_row(name, configuration(), repeats) for name, configuration in LANGUAGE.items()]
    return table(HEADER, [[*row, _first_call(row[0], repeats)] for row in rows])


def _first_call(name: str, repeats: int) -> str:
    """Return the time of a first call, in fresh processes; the first of them writes bytecode."""
    return median_time([measured_alone("benchmarks.open_sizes", name) for _ in range(repeats + 1)][1:])


def child(name: str) -> float:
    """Return the seconds of the first call in this process, after imports and the construction of the model."""
    if name in LANGUAGE:
        config = LANGUAGE[name]()
        transformers.AutoModelForCausalLM._model_mapping[type(config)]  # imports the class
        call: Callable[[], Any] = partial(extract_llm, config)
    else:
        case, varying = next((case, varying) for case, varying, _ in OPEN if case.name == name)
        model, inputs = case.on_meta()
        call = partial(torch_ir.extract_ir, model, (), kwargs=inputs, dynamic_shapes=varying)
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def _row(case: Case, varying: dict[str, Any], told: str, repeats: int) -> list[str]:
    model, inputs = case.on_meta()
    quick = partial(torch_ir.extract_ir, model, (), kwargs=inputs, dynamic_shapes=varying)
    exact = partial(quick, capture="export")
    theirs: Callable[[], Any] = partial(_torch_export, model, inputs, varying)
    samples = race({"theirs": theirs, "ours": quick}, repeats, turns={"ours": 5})
    walls = [samples[name].wall for name in ("theirs", "ours")]
    ir = quick()
    is_same = "yes" if ir.to_json() == exact().to_json() else "no"
    return [case.name, told, str(len(ir.nodes)), *map(median_time, walls), ratios(*walls), is_same]


def _torch_export(model: nn.Module, inputs: dict[str, Any], varying: Any) -> torch.export.ExportedProgram:
    with torch.no_grad():
        return torch.export.export(model, (), inputs, dynamic_shapes=varying, strict=False)


def _language_row(name: str, config: Any, repeats: int) -> list[str]:
    """Language models take torch.export minutes, so that only `extract_llm` is timed."""
    ours: Callable[[], Any] = partial(extract_llm, config)
    wall = race({"ours": ours}, repeats)["ours"].wall
    ir = ours()
    nodes = len(ir.nodes) + len(ir.functions["decode"].nodes)
    return [name, "batch, seq, past", str(nodes), "", median_time(wall), "", ""]


if __name__ == "__main__":
    print(json.dumps(child(*sys.argv[1:])))
