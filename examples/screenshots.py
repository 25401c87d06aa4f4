"""Take the screenshots of the explorer for the documentation, in headless Chromium.

python examples/screenshots.py [--output docs/images]
"""

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # for the catalogue and the tests

import torch
from transformers import LlamaConfig, LlamaForCausalLM

import benchmarks.models
import torch_ir
from benchmarks.models import Case
from examples.pictures import deep_llama, graph_of
from tests import browser
from torch_ir import IR

GO = "text => app.go(app.view, app.view.graph.nodes.find((node) => node.module === text))"
OPERATOR = "text => app.go(app.view, app.view.graph.nodes.find((node) => node.op.includes(text)))"
ASIDE = "by => app.view.move({ ...app.view.eye, x: app.view.eye.x + by })"
SEARCH = "text => { app.search.input.value = text; app.search.find(); app.search.step(1); }"
MODULE = (
    "path => app.go(app.view, app.view.graph.groups.find((group) => group.path === path && group.kind === 'module'))"
)


def large_llama() -> IR:
    """Capture a Llama of 32 layers with the widths of the 8B model."""
    model, inputs = Case("Llama", lambda: benchmarks.models.llama(32), benchmarks.models.tokens).on_meta()
    return torch_ir.extract_ir(model, (), kwargs=inputs)


def sharded_llama() -> IR:
    """Return a small Llama, sharded for four ranks."""
    config = LlamaConfig(
        vocab_size=256, hidden_size=64, intermediate_size=128, num_hidden_layers=4, num_attention_heads=8,
        num_key_value_heads=4, use_cache=False,
    )  # fmt: skip
    with torch_ir.meta_init():
        model = LlamaForCausalLM(config).eval()
    ir = torch_ir.extract_ir(model, (), kwargs={"input_ids": torch.zeros(1, 16, dtype=torch.int64, device="meta")})
    return torch_ir.shard(ir, torch_ir.transformers_plan(config, ir), {"tp": 4})


def pictures() -> dict[str, tuple[IR, dict[str, Any], list[tuple[str, Any]]]]:
    """Return, for each picture, a graph, the options of its page, and a function that operates the page."""
    resnet, llama, small = graph_of("resnet50"), large_llama(), deep_llama()
    blocks = small.at_level("module", leaf=["GroupedQueryAttention", "SwiGLU"])
    norms = {node.name for node in blocks.nodes if node.op_type.endswith("RMSNorm")}
    optimised, _ = torch_ir.optimize(graph_of("resnet18"), "basic")
    pair = {"against": optimised, "titles": ("resnet18.json", "optimised.json")}
    paint = "mode => app.paint(mode)"
    return {
        "explorer-resnet50": (resnet, {"titles": ("resnet50.json", "")}, [(GO, "layer1.0.conv2")]),
        "explorer-llama": (llama, {"titles": ("llama.json", "")}, [(MODULE, "model.layers.0.self_attn"), (ASIDE, 40)]),
        "explorer-heat": (resnet, {"titles": ("resnet50.json", "")}, [(MODULE, "layer2.0"), (paint, "flops")]),
        "explorer-against": (graph_of("resnet18"), pair, [(GO, "layer1.0.bn1")]),
        "explorer-placeholders": (blocks, {"titles": ("llama.json", ""), "placeholders": norms}, []),
        "explorer-sharded": (sharded_llama(), {"titles": ("rank.json", "")}, [(OPERATOR, "all_reduce")]),
        "explorer-dark": (llama, {"titles": ("llama.json", "")}, [(SEARCH, "layers.7 linear")]),
    }


def take(running: Any, page: Path, picture: Path, steps: list[tuple[str, Any]]) -> None:
    """Open a page, operate it, and save a screenshot."""
    scheme = "dark" if "dark" in picture.name else "light"
    visit = browser.Visit(running, page, color_scheme=scheme)
    visit.page.wait_for_selector("html[data-ready]")
    for code, argument in steps:
        visit.page.evaluate(code, argument)
    visit.page.screenshot(path=picture)
    visit.page.close()
    if visit.wrong:
        raise SystemExit(f"{picture.name}: {visit.wrong[0]}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--output", type=Path, default=Path("docs/images"))
    folder: Path = parser.parse_args().output
    if browser.find() is None:
        raise SystemExit(browser.ABSENT)
    with browser.launched() as running, tempfile.TemporaryDirectory() as scratch:
        for name, (ir, options, steps) in pictures().items():
            page, picture = Path(scratch) / f"{name}.html", folder / f"{name}.png"
            torch_ir.explore(ir, page, **options)
            take(running, page, picture, steps)
            print(f"{picture}: {picture.stat().st_size / 1e3:.0f} kB")


if __name__ == "__main__":
    main()
