"""Draw the pictures of the documentation.

python examples/pictures.py [--output docs/images]
"""

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # for the catalogue

import catalogue
import torch_ir
from catalogue.llama import Llama, LlamaLayer
from torch_ir import IR
from torch_ir.cli import main as torch_ir_command


def graph_of(name: str) -> IR:
    """Capture a model of the catalogue without weights."""
    entry = catalogue.find(name)
    with torch.device("meta"):
        model = entry.build()
    return torch_ir.extract_ir(model, tuple(tensor.to("meta") for tensor in entry.inputs()))


def deep_llama(count: int = 16) -> IR:
    """Capture the Llama of the catalogue with more layers."""
    with torch_ir.meta_init():
        model = Llama()
        model.layers = nn.ModuleList(LlamaLayer(32) for _ in range(count))
    return torch_ir.extract_ir(model.eval(), (torch.empty(1, 16, dtype=torch.long, device="meta"),))


def from_page(page: str, model: str, *inputs: torch.Tensor, **options: Any) -> IR:
    """Capture the model in the first code block of a documentation page."""
    text = (Path(__file__).resolve().parents[1] / "docs" / page).read_text(encoding="utf-8")
    names: dict[str, Any] = {"__name__": "page"}
    exec(text.partition("```python\n")[2].partition("```")[0], names)
    with torch_ir.meta_init():
        built = names[model]().eval()
    return torch_ir.extract_ir(built, inputs, **options)


def pictures() -> dict[str, tuple[IR, dict[str, Any]]]:
    """Return, for each picture, a graph and the options of `render`."""
    mlp, resnet18, resnet50, llama = graph_of("mlp"), graph_of("resnet18"), graph_of("resnet50"), deep_llama()
    blocks = llama.at_level("module", leaf=["GroupedQueryAttention", "SwiGLU"])
    norms = {node.name for node in blocks.nodes if node.op_type.endswith("RMSNorm")}
    flops = {row.node.name: row.flops for row in torch_ir.cost(resnet50).nodes}
    better, _ = torch_ir.optimize(llama, "full")
    tiny = from_page("tour.md", "Tiny", torch.empty(1, 16, dtype=torch.long, device="meta"))
    return {
        "mlp.png": (mlp, {}),
        "placeholder.png": (mlp, {"placeholders": {"relu"}, "include_weights": False}),
        "resnet18.png": (resnet18, {"max_nodes": 6}),
        "depth.png": (resnet50, {"depth": 2, "fold": True}),
        "depth-placeholders.png": (resnet50, {"depth": 1, "placeholders": {"conv2d_40", "conv2d_46", "flatten"}}),
        "focus.png": (resnet18, {"focus": "layer2.0", "radius": 1}),
        "heat.png": (resnet50, {"depth": 2, "fold": True, "heat": flops, "unit": "FLOPs"}),
        "work_list.png": (resnet50, {"fold": True, "placeholders": {"flatten"}}),
        "llama.png": (llama.at_level("module"), {"fold": True}),
        "llama-placeholders.png": (blocks, {"fold": True, "placeholders": norms}),
        "llama-optimised.png": (better, {"fold": True}),
        "tour.png": (tiny.at_level("module"), {"fold": True}),
    }


def pairs() -> dict[str, tuple[IR, str, list[str]]]:
    """Return, for each comparison, a graph, its optimisation level, and the arguments of `torch-ir draw`."""
    image = torch.empty(2, 3, 32, 32, device="meta")
    batch = ({0: torch.export.Dim("batch", min=1, max=64)},)
    net = from_page("first-model.md", "Net", image, dynamic_shapes=batch)
    return {
        "first-model.png": (net, "full", []),
        "against.png": (graph_of("resnet18"), "basic", ["--focus", "layer2.0", "--radius", "1", "--fold"]),
        "against-llama.png": (deep_llama(), "full", ["--focus", "layers.0.mlp", "--radius", "1", "--fold"]),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--output", type=Path, default=Path("docs/images"))
    folder: Path = parser.parse_args().output
    for name, (ir, options) in pictures().items():
        torch_ir.render(ir, folder / name, **options)
    with tempfile.TemporaryDirectory() as work:
        after = Path(work, "better.json")
        for name, (ir, level, words) in pairs().items():
            before = Path(work, "net.json" if name == "first-model.png" else "before.json")  # as the pages name it
            ir.save(before)
            torch_ir.optimize(ir, level)[0].save(after)
            torch_ir_command(["draw", str(before), "--against", str(after), *words, "-o", str(folder / name), "-q"])
        graph_of("unet").save(before)
        torch_ir_command(["memory", str(before), "--picture", str(folder / "memory-plan.svg"), "-q"])
    for path in sorted([*folder.glob("*.png"), *folder.glob("*.svg")]):
        print(f"{path}: {path.stat().st_size / 1e3:.0f} kB")


if __name__ == "__main__":
    main()
