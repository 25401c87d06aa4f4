"""Helpers for tests of golden packs: a model, its pack, and the dumps of a runtime that may be wrong."""

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from tests.proof import captured
from torch_ir import IR, Comparison, IRExecutor, TensorMeta, compare_golden, write_golden

X = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.encoder = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 8))
        self.head = nn.Linear(8, 2)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        low, high = self.encoder(x).relu().chunk(2, 1)
        return self.head(torch.cat([low, high], 1)).softmax(1), low.argmax(1)


NET = Net().eval()


def dumped(ir: IR, weights: dict[str, Tensor], *inputs: Any, broken: str = "", by: float = 0.5) -> dict[str, Tensor]:
    """Dumps of a runtime that computes one node wrongly: every value by name."""
    values: dict[str, Tensor] = {}

    def watch(tensor: TensorMeta, value: Any, sizes: Any) -> None:
        if tensor.name == broken:
            value += by  # in place, so that later nodes read it
        values[tensor.name] = value.clone()

    IRExecutor(ir, weights, watch=watch).execute(inputs)
    return values


def golden(path: Path, model: nn.Module = NET, *inputs: Any, **options: Any) -> IR:
    """A pack of a model; returns its graph."""
    ir = captured(model, *(inputs or (X,)))
    write_golden(ir, model.state_dict(), inputs or (X,), path, model=model, **options)
    return ir


def compared(path: Path, values: dict[str, Tensor], **options: Any) -> Comparison:
    """A comparison of dumps with the pack at a path."""
    save_file(values, path.with_suffix(".safetensors"))
    return compare_golden(path, path.with_suffix(".safetensors"), **options)
