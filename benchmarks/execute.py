"""Overhead of the executor over eager, on a model with large kernels and one with small kernels."""

from collections.abc import Callable
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

import torch_ir
from benchmarks.measure import median_time, race, ratios, table
from benchmarks.models import EXECUTED, Case, torch_export

BLOCKS = {"ResNet-18": "BasicBlock", "tiny Llama": "LlamaDecoderLayer"}
HEADER = [
    "model", "nodes", "eager", "torch.export module / eager (range)", "fx.GraphModule / eager (range)",
    "IRExecutor / eager (range)", "the same, blocks as functions", "peak memory of a run: eager", "IRExecutor",
]  # fmt: skip


def run(repeats: int = 25) -> str:
    """Compare eager, torch's exported module, its bare graph and our executor on the same weights and inputs."""
    return table(HEADER, [_row(case, repeats) for case in EXECUTED])


def _row(case: Case, repeats: int) -> list[str]:
    torch.manual_seed(0)
    model, inputs = case.build().eval(), case.inputs()
    ir = torch_ir.extract_ir(model, (), kwargs=inputs, strict=False)
    executor = torch_ir.IRExecutor(ir, model.state_dict())
    folded = torch_ir.IRExecutor(ir.at_level("aten", [BLOCKS[case.name]]), model.state_dict())
    with torch.no_grad():
        program = torch_export(model, inputs)
        module, bare = program.module(), _bare(program.run_decompositions({}), inputs)
        contestants = {
            "eager": lambda: model(**inputs),
            "torch": lambda: module(**inputs),
            "fx": bare,
            "ours": lambda: executor(**inputs),
            "folded": lambda: folded(**inputs),
        }
        times = {name: samples.wall for name, samples in race(contestants, repeats, case.calls).items()}
        peaks = [f"{_peak_bytes(contestants[name]) / 1024:,.0f} KiB" for name in ("eager", "ours")]
    against_eager = [ratios(times[name], times["eager"]) for name in ("torch", "fx", "ours", "folded")]
    return [case.name, str(len(ir.nodes)), median_time(times["eager"]), *against_eager, *peaks]


def _bare(program: torch.export.ExportedProgram, inputs: dict[str, Any]) -> Callable[[], Any]:
    """Return the exported graph as a callable: flat, without checks, bound to its weights and inputs."""
    known = {**program.state_dict, **program.constants}
    specs = program.graph_signature.input_specs
    values = [known[spec.target] for spec in specs if spec.target is not None]
    graph = program.graph_module
    return lambda: graph(*values, *inputs.values())


def _peak_bytes(action: Callable[[], Any]) -> int:
    """Return the peak memory of one run over the baseline, including temporaries inside kernels."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        action()
    events = [event for event in profiler.profiler.kineto_results.events() if event.name() == "[memory]"]
    live = peak = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        live += event.nbytes()
        peak = max(peak, live)
    return peak
