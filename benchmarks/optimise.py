"""Savings and run time of the optimiser, next to the best of the ONNX optimisers on the same models."""

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch

import torch_ir
from benchmarks.measure import digits, median_time, race, ratios, table
from benchmarks.models import SERVED, Case, llama, llama_405b, tokens
from torch_ir import IR, IRExecutor, optimize
from torch_ir.analysis.cost_model.traffic import is_view
from torch_ir.analysis.values.prologue import split_prologue
from torch_ir.passes.random_check import prove

PEERS = json.loads((Path(__file__).with_suffix("").parent / "peer_optimisers.json").read_text(encoding="utf-8"))
LEVELS = ("basic", "full")
LAYERS = (8, 16, 32, 64, 126)
OPSETS = {"BERT-base": 23, "ViT-base": 23, "GPT-2": 23}
# The models, with their names in the peers' figures.
CASES = [
    *((case, f"{case.name}, opset {OPSETS.get(case.name, 20)}") for case in SERVED),
    (Case("Llama, 8 layers", lambda: llama(8, 512), tokens), "Llama, 8 layers, 512 wide, opset 23"),
]


def run() -> str:
    """Return the figures before and after, and the time by model size."""
    bought = [row for case, peer in CASES for row in _bought(case, PEERS["models"][peer])]
    header = [
        "model",
        "graph",
        "nodes per run",
        "without views",
        "GFLOPs",
        "MB moved",
        "peak MB",
        "verified",
    ]
    runs = table(["model", "extracted", *(f"{level} (range)" for level in LEVELS), "eager (range)"], map(_timed, CASES))
    growth = table(["layers", "nodes", "extract", *(f"{level} (range)" for level in LEVELS)], map(_grown, LAYERS))
    return f"{table(header, bought)}\n\n{runs}\n\n{growth}"


def extracted(case: Case) -> IR:
    with torch_ir.meta_init():
        model = case.build().eval()
    inputs = {name: tensor.to("meta") for name, tensor in case.inputs().items()}
    return torch_ir.extract_ir(model, (), kwargs=inputs)


def _bought(case: Case, peers: dict[str, Any]) -> Iterator[list[str]]:
    """Return the rows of a model: before, after each level, and the lowest value of any peer in each column."""
    ir = extracted(case)
    yield [case.name, "extracted", *_figures(ir), ""]
    for level in LEVELS:
        better, _ = optimize(ir, level)
        yield ["", f"optimised, {level}", *_figures(better), str(prove(ir, better, trials=1).is_valid).lower()]
    best = {name: min(peer[name] for peer in peers.values()) for name in ("compute", "without_views", "flops", "bytes")}
    amounts = [digits(best["flops"] / 1e9), digits(best["bytes"] / 1e6), "", ""]
    yield ["", "best peer in each column", str(best["compute"]), str(best["without_views"]), *amounts]


def _figures(ir: IR) -> list[str]:
    from torch_ir.analysis.cost_model.cost_summary import measured_in_all

    cost = measured_in_all(ir)
    working = [node for node in split_prologue(ir)[1] if node.outputs and not is_view(node)]
    amounts = [float(cost.flops) / 1e9, float(cost.bytes) / 1e6, float(cost.peak) / 1e6]
    return [str(cost.nodes), str(len(working)), *map(digits, amounts)]


def _timed(entry: tuple[Case, str]) -> list[str]:
    """Return the run time of the graph, and the ratios of the optimised graphs and the model to it."""
    case = entry[0]
    torch.manual_seed(0)
    model, inputs = case.build().eval(), case.inputs()
    ir = extracted(case)
    graphs = {"extracted": ir, **{level: optimize(ir, level)[0] for level in LEVELS}}
    roads = {name: partial(IRExecutor(graph, model.state_dict()), **inputs) for name, graph in graphs.items()}
    with torch.no_grad():
        times = race({**roads, "eager": partial(model, **inputs)}, 10, calls=3)
    base = times["extracted"].wall
    return [case.name, median_time(base), *(ratios(times[name].wall, base) for name in (*LEVELS, "eager"))]


def _grown(layers: int) -> list[str]:
    """Return optimisation times for Llamas at the widths of the 405B model."""
    model, inputs = Case("Llama", partial(llama_405b, layers), tokens).on_meta()
    extract = partial(torch_ir.extract_ir, model, (), kwargs=inputs)
    ir = extract()
    times = race({"extract": extract, **{level: partial(optimize, ir, level, by_block=True) for level in LEVELS}}, 5)
    base = times["extract"].wall
    spent = [f"{median_time(times[level].wall)}, {ratios(times[level].wall, base)}" for level in LEVELS]
    return [str(layers), str(len(ir.nodes)), median_time(base), *spent]
