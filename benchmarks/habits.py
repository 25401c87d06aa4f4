"""Capture of one network whose forward does what many models do, against torch.export.

python -m benchmarks habits
"""

import random
import warnings
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn

import torch_ir
from benchmarks.measure import median_time, race, ratios, table

HEADER = ["48 layers of linear, norm and ReLU, whose forward ...", "torch.export", "extract_ir", "times faster (range)"]
_LAYERS, _SIZE = 48, 64


class _Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(_SIZE, _SIZE), nn.LayerNorm(_SIZE)
        self.kept: Tensor | None = None
        self.register_buffer("scale", torch.tensor(2.0))

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.linear(x)).relu()


class _Keeps(_Layer):
    def forward(self, x: Tensor) -> Tensor:
        self.kept = self.linear(x)
        return self.norm(self.kept).relu()


class _MentionsRandom(_Layer):
    def forward(self, x: Tensor) -> Tensor:
        if self.training and random.random() < 0.1:
            return x
        return super().forward(x)


class _Casts(_Layer):
    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = self.linear(x)
        return self.norm(y.float()).relu()


class _Item(_Layer):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * self.scale.item()


class _BatchNorm(_Layer):
    def __init__(self) -> None:
        super().__init__()
        self.norm: nn.Module = nn.BatchNorm1d(_SIZE)


def _net(kind: Callable[[], nn.Module]) -> nn.Module:
    return nn.Sequential(*(kind() for _ in range(_LAYERS))).eval()


_ROWS = torch.randn(8, _SIZE)
CASES: dict[str, Callable[[], tuple[nn.Module, Tensor]]] = {
    "does nothing else": lambda: (_net(_Layer), _ROWS),
    "stores a tensor in an attribute": lambda: (_net(_Keeps), _ROWS),
    "mentions `random`": lambda: (_net(_MentionsRandom), _ROWS),
    "has a region of `torch.autocast`": lambda: (_net(_Casts), _ROWS),
    "updates batch norms, in `.train()`": lambda: (_net(_BatchNorm).train(), _ROWS),
    "calls `.item()` of a buffer": lambda: (_net(_Item), _ROWS),
    "is that of `nn.LSTM`, two layers, 100 steps": lambda: (nn.LSTM(32, 32, 2).eval(), torch.randn(100, 4, 32)),
    "is that of `nn.GRU`, two layers, 100 steps": lambda: (nn.GRU(32, 32, 2).eval(), torch.randn(100, 4, 32)),
}


def run(repeats: int = 5) -> str:
    """Return the CPU times of warm captures and their ratio."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that a model is in training mode
        return table(HEADER, [_row(name, *make(), repeats) for name, make in CASES.items()])


def _row(name: str, model: nn.Module, x: Tensor, repeats: int) -> list[str]:
    ours = partial(torch_ir.extract_ir, model, (x,), strict=False)
    samples = race({"theirs": partial(_exported, model, x), "ours": ours}, repeats, turns={"ours": 3})
    times = [samples[side].cpu for side in ("theirs", "ours")]
    return [name, *map(median_time, times), ratios(*times)]


def _exported(model: nn.Module, x: Tensor) -> torch.export.ExportedProgram:
    with torch.no_grad():
        return torch.export.export(model, (x,), strict=False)
