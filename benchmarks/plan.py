"""Plans for large language models on a cluster: time of the search, and the plan beside that of transformers."""

import json
import sys
import time
from collections.abc import Callable
from typing import Any

from benchmarks.measure import measured_alone, median_time, table
from benchmarks.shard import deepseek_v3, llama_405b, mixtral

HEADER = [
    "model", "devices", "first search", "search", "plan", "time", "memory per rank", "transformers' plan, same ranks",
]  # fmt: skip
PROMPT = 128
CASES: dict[str, tuple[Callable[[], Any], int]] = {
    "Mixtral-8x7B": (mixtral, 8),
    "Llama-405B": (llama_405b, 16),
    "DeepSeek-V3": (deepseek_v3, 64),
}


def run(repeats: int = 5) -> str:
    """Measure each model in a separate process: devices of 80 GB, 990 TFLOPs, 3.35 TB/s; 8 in a node."""
    rows = []
    for name, (_, devices) in CASES.items():
        found = measured_alone("benchmarks.plan", name, repeats)
        rows.append(
            [
                name,
                devices,
                median_time(found["first"]),
                median_time(found["search"]),
                found["plan"],
                f"{1e3 * found['seconds']:.1f} ms",
                f"{found['memory'] / 1e9:.1f} GB",
                f"{1e3 * found['theirs']:.1f} ms",
            ]
        )
    return table(HEADER, rows)


def child(name: str, repeats: int) -> dict[str, Any]:
    """Build one model on meta, capture it, and plan it `repeats` times after a first time."""
    import torch

    import torch_ir
    from torch_ir.analysis import Link, Roofline
    from torch_ir.analysis.cost_model.times import Clock
    from torch_ir.llm.extraction import build_on_meta
    from torch_ir.planning.plan_report import name_of

    make, devices = CASES[name]
    config = make()
    config.use_cache = False
    ids = torch.zeros(1, PROMPT, dtype=torch.int64)
    ir = torch_ir.extract_ir(build_on_meta(config), (), kwargs={"input_ids": ids}, strict=False).fold_blocks()
    cluster = torch_ir.Cluster(devices, 80e9, Roofline(990e12, 3.35e12), Link(450e9, 2e-6), Link(50e9, 10e-6), 8)
    samples = []
    for _ in range(repeats + 1):
        start = time.process_time()
        report = torch_ir.find_plan(ir, cluster)
        samples.append(time.process_time() - start)
    ranks = report.best.mesh.get("tp", 1)
    theirs = torch_ir.shard(ir, torch_ir.transformers_plan(config, ir, ranks=ranks), {"tp": ranks})
    clock = Clock(cluster.device, cluster.network, theirs.mesh)
    estimate = report.best.estimate
    return {
        "first": samples[:1],
        "search": samples[1:],
        "plan": name_of(report.best),
        "seconds": estimate.seconds,
        "memory": estimate.memory,
        "theirs": clock.graph(torch_ir.cost(theirs).per_run).seconds,
    }


if __name__ == "__main__":
    print(json.dumps(child(sys.argv[1], int(sys.argv[2]))))
