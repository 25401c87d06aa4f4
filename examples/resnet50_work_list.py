"""Unsupported operators of a target: ResNet-50 on a target without `flatten`.

python examples/resnet50_work_list.py [--picture resnet50.png]
"""

import argparse
import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # for the catalogue

import catalogue
import torch_ir

npu = torch_ir.Target("npu")


@npu.lowers(
    *("torch.nn.Conv2d", "torch.nn.BatchNorm2d", "torch.nn.ReLU", "torch.nn.MaxPool2d", "torch.nn.AdaptiveAvgPool2d"),
    *("torch.nn.Linear", "torch.add"),
)
def layer(node: torch_ir.OpNode) -> dict[str, object]:
    """Return a target for seven kinds of layers, each lowered to its attributes."""
    return {name: value for name, value in node.attrs.items() if name != "function"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--picture", type=Path, metavar="FILE", help="draw it, with what is missing in red")
    picture: Path | None = parser.parse_args().picture

    entry = catalogue.find("resnet50")
    with torch.device("meta"):
        model = entry.build()
    ir = torch_ir.extract_ir(model, tuple(tensor.to("meta") for tensor in entry.inputs()))

    print("Converting resnet50 ...")
    lowered = npu.lower(ir, log=print)
    print(lowered.report())
    if picture is not None:
        torch_ir.render(lowered.ir, picture, placeholders=lowered.placeholders, fold=True)
        print(f"{picture}: drawn")


if __name__ == "__main__":
    main()
