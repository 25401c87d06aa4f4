"""Draw the pictures that the documentation shows.

python examples/pictures.py [--output docs/images]
"""

import argparse
import sys
from pathlib import Path

import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # the catalogue lies beside this folder

import catalogue
import torch_ir
from catalogue.llama import Llama, LlamaLayer
from torch_ir import IR


def graph_of(name: str) -> IR:
    """The graph of a model of the catalogue, captured without weights."""
    entry = catalogue.find(name)
    with torch.device("meta"):
        model = entry.build()
    return torch_ir.extract_ir(model, tuple(tensor.to("meta") for tensor in entry.inputs()))


def deep_llama(count: int = 16) -> IR:
    """The Llama of the catalogue with more layers."""
    with torch_ir.meta_init():
        model = Llama()
        model.layers = nn.ModuleList(LlamaLayer(32) for _ in range(count))
    return torch_ir.extract_ir(model.eval(), (torch.empty(1, 16, dtype=torch.long, device="meta"),))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--output", type=Path, default=Path("docs/images"))
    folder: Path = parser.parse_args().output
    mlp, resnet50, llama = graph_of("mlp"), graph_of("resnet50"), deep_llama()
    blocks = llama.at_level("module", leaf=["GroupedQueryAttention", "SwiGLU"])
    norms = {node.name for node in blocks.nodes if node.op_type.endswith("RMSNorm")}
    pictures = {
        "mlp.png": (mlp, {}),
        "placeholder.png": (mlp, {"placeholders": {"relu"}, "include_weights": False}),
        "resnet18.png": (graph_of("resnet18"), {"max_nodes": 6}),
        "resnet50.png": (resnet50.at_level("module"), {"fold": True}),
        "work_list.png": (resnet50, {"fold": True, "placeholders": {"flatten"}}),
        "llama.png": (llama.at_level("module"), {"fold": True}),
        "llama-placeholders.png": (blocks, {"fold": True, "placeholders": norms}),
    }
    for file, (ir, options) in pictures.items():
        torch_ir.render(ir, folder / file, **options)
        print(f"{folder / file}: {(folder / file).stat().st_size / 1e3:.0f} kB")


if __name__ == "__main__":
    main()
