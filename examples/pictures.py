"""Draw the pictures that the documentation shows.

python examples/pictures.py [--output docs/images]
"""

import argparse
import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # the catalogue lies beside this folder

import catalogue
import torch_ir

# file name -> model of the catalogue, and how it is drawn
PICTURES = {
    "mlp.png": ("mlp", {}),
    "resnet18.png": ("resnet18", {"max_nodes": 6}),
    "placeholder.png": ("mlp", {"placeholders": {"relu"}, "include_weights": False}),
}


def graph_of(name: str) -> torch_ir.IR:
    """The graph of a model of the catalogue, captured without weights."""
    entry = catalogue.find(name)
    with torch.device("meta"):
        model = entry.build()
    return torch_ir.extract_ir(model, tuple(tensor.to("meta") for tensor in entry.inputs()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--output", type=Path, default=Path("docs/images"))
    folder: Path = parser.parse_args().output
    for file, (name, options) in PICTURES.items():
        torch_ir.render(graph_of(name), folder / file, **options)
        print(f"{folder / file}: {(folder / file).stat().st_size / 1e3:.0f} kB")


if __name__ == "__main__":
    main()
