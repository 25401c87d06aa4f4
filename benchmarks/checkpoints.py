"""Checkpoints of very large models: capture in their layout, and `weights check` against headers alone.

python -m benchmarks.checkpoints [--model NAME]

No weight exists: models are on meta, and the checkpoint is an index of .safetensors files whose headers are complete
and whose data are holes of sparse files. The times are CPU seconds of one process (wall time depends on other work).
"""

import argparse
import json
import math
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import torch

from benchmarks.measure import machine, table
from torch_ir.cli import main as command
from torch_ir.ir import IR
from torch_ir.llm import extract_llm
from torch_ir.llm.extraction import build_on_meta
from torch_ir.ops.torch_types import TORCH_DTYPES

SHARD = 5 << 30  # bytes of data, as hubs write them
_NAMES = {
    "float8_e4m3fn": "F8_E4M3", "bfloat16": "BF16", "float32": "F32", "uint8": "U8", "int32": "I32", "float16": "F16",
}  # fmt: skip


def deepseek_v3() -> Any:
    from transformers import DeepseekV3Config

    config = DeepseekV3Config(dtype=torch.bfloat16)
    config.quantization_config = {
        "quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": [128, 128],
    }  # fmt: skip
    return config


def gpt_oss_120b() -> Any:
    from transformers import GptOssConfig

    config = GptOssConfig(dtype=torch.bfloat16)
    kept = ["model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"]
    config.quantization_config = {"quant_method": "mxfp4", "modules_to_not_convert": kept}
    return config


MODELS: dict[str, Callable[[], Any]] = {"DeepSeek-V3, fp8": deepseek_v3, "gpt-oss-120b, mxfp4": gpt_oss_120b}
FORMS: dict[str, dict[str, Any]] = {
    "prologue": {},
    "layer": {"dequantize": "layer"},
    "layer, blocks as functions": {"dequantize": "layer", "blocks": "function"},
}


def timed(action: Callable[[], Any]) -> tuple[Any, float]:
    """Return the result of a call and its CPU seconds."""
    start = time.process_time()
    result = action()
    return result, time.process_time() - start


def headers(ir: IR) -> Iterator[tuple[str, str, list[int], int]]:
    """Yield key, dtype, shape and bytes of every tensor of the checkpoint that a graph reads."""
    for param in ir.params:
        if param.param and param.param.in_state_dict:
            shape = [int(dim) for dim in param.shape[param.param.kind == "stack" :]]
            size = math.prod(shape) * TORCH_DTYPES[param.dtype].itemsize
            yield from ((key, _NAMES[param.dtype], shape, size) for key in param.stored_keys)


def write_headers(ir: IR, folder: Path) -> tuple[int, int, int]:
    """Write shards without data, and their index; return how many tensors, shards and bytes they describe."""
    shards: list[dict[str, Any]] = [{}]
    placed, end, total = {}, 0, 0
    for key, dtype, shape, size in headers(ir):
        if end + size > SHARD and shards[-1]:
            shards.append({})
            end = 0
        shards[-1][key] = {"dtype": dtype, "shape": shape, "data_offsets": [end, end + size]}
        placed[key] = f"model-{len(shards):05}.safetensors"
        end, total = end + size, total + size
    for number, entries in enumerate(shards, 1):
        text = json.dumps(entries).encode()
        with open(folder / f"model-{number:05}.safetensors", "wb") as file:
            file.write(len(text).to_bytes(8, "little") + text)
            file.truncate(8 + len(text) + max(entry["data_offsets"][1] for entry in entries.values()))
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": placed}))
    return len(placed), len(shards), total


def measure(name: str) -> list[list[str]]:
    """Return a row for each form of a model's graph."""
    model, built = timed(lambda: build_on_meta(MODELS[name]()))
    rows = []
    for form, options in FORMS.items():
        ir, spent = timed(lambda options=options: extract_llm(model, **options))
        with tempfile.TemporaryDirectory() as place:
            folder = Path(place)
            _, saving = timed(lambda ir=ir, folder=folder: ir.save(folder / "graph.json"))
            size = (folder / "graph.json").stat().st_size
            count, shards, total = write_headers(ir, folder)
            arguments = ["weights", "check", str(folder / "graph.json"), str(folder)]
            with redirect_stdout(StringIO()) as told:
                status, checking = timed(lambda arguments=arguments: command(arguments))
            assert status == 0, told.getvalue()
        amounts = [f"{count:,} in {shards}", f"{total / 1e9:.0f} GB", f"{len(ir.params):,}"]
        times = [f"{each:.1f} s" for each in (built, spent, saving, checking)]
        rows.append([name, form, *amounts, *times, f"{size / 1e6:.1f} MB"])
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.checkpoints", description=__doc__)
    parser.add_argument("--model", choices=tuple(MODELS), action="append")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    print(machine())
    titles = [
        "model", "dequantised in", "tensors and shards", "bytes", "weights of the graph", "build", "extract", "save",
        "`weights check`", "file",
    ]  # fmt: skip
    print(table(titles, [row for name in options.model or MODELS for row in measure(name)]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
