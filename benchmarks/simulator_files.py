"""Memory plans and Chakra traces of large language models: `python -m benchmarks.simulator_files`.

Prints, for a Llama of 70 B parameters (batch 1, prompt 2048): the time to write the traces of 32,768 ranks, 8 of tensor
parallelism by 16 stages by 256 replicas; and for its graphs on one device, the time to plan the memory and how much
larger the arena is than the live peak. Nothing is run and no weights are needed.
"""

from __future__ import annotations

import tempfile
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from transformers import LlamaConfig

from torch_ir import IR
from torch_ir.analysis import Roofline, plan_memory
from torch_ir.llm import extract_llm
from torch_ir.pipeline import split
from torch_ir.sharding import shard, transformers_plan
from torch_ir.simulators import to_chakra, write_ranks

LLAMA_70B = LlamaConfig(
    hidden_size=8192, intermediate_size=28672, num_hidden_layers=80, num_attention_heads=64, num_key_value_heads=8,
    vocab_size=128256, max_position_embeddings=8192,
)  # fmt: skip
SIZES = {"batch": 1, "seq": 2048}
DEVICE = Roofline(990e12, 3.35e12)
RANKS, STAGES, REPLICAS = 8, 16, 256


@contextmanager
def timed(what: str) -> Iterator[None]:
    begin = time.perf_counter()
    yield
    print(f"{what}: {time.perf_counter() - begin:.1f} s")


def traces(ir: IR) -> None:
    with timed("shard and split"):
        pipeline = split(shard(ir, transformers_plan(LLAMA_70B, ir, ranks=RANKS), {"tp": RANKS}), STAGES)
    with tempfile.TemporaryDirectory() as folder:
        with timed("traces"):
            index = to_chakra(pipeline, folder, sizes=SIZES, device=DEVICE, replicas=REPLICAS)
        size = sum(path.stat().st_size for path in Path(folder).iterdir())
        print(f"{index['ranks']:,} ranks, {len(index['traces'])} files, {size / 1e6:.1f} MB")
        with timed("files of 128 single ranks"):
            write_ranks(folder, range(RANKS * STAGES), Path(folder) / "ranks")


def plan(name: str, ir: IR, sizes: dict[str, int]) -> None:
    begin = time.perf_counter()
    found = plan_memory(ir, sizes=sizes)
    seconds = time.perf_counter() - begin
    ratio = found.used["arena"] / found.peak
    print(
        f"{name}: {len(found.places)} tensors, peak {found.peak / 1e6:.1f} MB, arena {ratio:.4f} of it, {seconds:.1f} s"
    )


def main() -> None:
    warnings.simplefilter("ignore")
    with timed("capture"):
        ir = extract_llm(LLAMA_70B)
    plan("prefill", ir, SIZES)
    plan("decode", ir.functions["decode"], {"batch": 1, "past": 2048})
    traces(ir)


if __name__ == "__main__":
    main()
