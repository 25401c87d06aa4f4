"""How the files beside this one were made: by the documented peer itself (pytorch-ir 0.2.3, torch 2.13.0).

Run it where `import torch_ir` is the peer's package, and give it this folder: python make.py FOLDER
Each model leaves NAME.json, which the peer wrote, and NAME.values.json: inputs, weights and the model's own outputs.
"""

import json
import sys
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from torch_ir import extract_ir


class MLP(nn.Module):
    """The model of the documentation."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1 = nn.Linear(4, 8)
        self.relu = nn.ReLU()
        self.fc2 = nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(self.relu(self.fc1(x)))


class CNN(nn.Module):
    """Batch norm in inference, and a split whose parts are read through getitem."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 4, 3, stride=2, padding=1, bias=False)
        self.bn = nn.BatchNorm2d(4)
        self.fc = nn.Linear(2, 3)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        first, second = F.relu(self.bn(self.conv(x))).split(2, 1)
        return self.fc((first * second).mean((2, 3))), second


class Cat(nn.Module):
    """Lists of tensors, one of them reading the same tensor twice."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(6, 2)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return self.fc(torch.cat([x, y, x], dim=1)) + torch.stack([y[:, 0], y[:, 1]], 1)


class Index(nn.Module):
    """A list of tensors with None in it."""

    def forward(self, x: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        return torch.ops.aten.index.Tensor(x, [None, rows]), x[rows]


class Constants(nn.Module):
    """A tensor attribute, a non-persistent buffer and a literal in forward: values in the file."""

    def __init__(self) -> None:
        super().__init__()
        self.k = torch.tensor([1.5, -2.0, 0.25])
        self.register_buffer("steps", torch.arange(3), persistent=False)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return x * self.k + self.steps, torch.where(torch.tensor([True, False, True]), x, self.k)


class Max(nn.Module):
    """Two outputs of different dtypes, both returned and one also read."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(3, 4)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        best, where = torch.max(self.fc(x), dim=1)
        return best, where, best * 2


class Tied(nn.Module):
    """One tensor under two keys."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(5, 4)
        self.head = nn.Linear(4, 5, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.embed(ids))


class Norm(nn.Module):
    """Layer norm over a residual."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(4)
        self.fc = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x + self.fc(x))


MODELS: dict[str, tuple[type[nn.Module], list[list[int]]]] = {
    "mlp": (MLP, [[1, 4]]),
    "cnn": (CNN, [[1, 2, 5, 5]]),
    "cat": (Cat, [[2, 2], [2, 2]]),
    "index": (Index, [[3, 4]]),
    "constants": (Constants, [[2, 3]]),
    "max": (Max, [[2, 3]]),
    "tied": (Tied, []),
    "norm": (Norm, [[2, 4]]),
}
WHOLE = {"index": [torch.tensor([2, 0])], "tied": [torch.tensor([[4, 0, 2]])]}  # inputs that are whole numbers


def numbers(shape: list[int], start: int) -> Tensor:
    """Eighths from -5/8 to 5/8, so that products and sums are exact."""
    count = torch.Size(shape).numel()
    return (((torch.arange(count) * 7 + start * 3) % 11 - 5) / 8).reshape(shape)


def record(tensor: Tensor) -> dict[str, Any]:
    return {"dtype": str(tensor.dtype)[6:], "shape": list(tensor.shape), "data": tensor.flatten().tolist()}


def make(name: str, folder: Path) -> None:
    kind, shapes = MODELS[name]
    model = kind().eval()
    weights = {}
    for index, (key, old) in enumerate(model.state_dict().items()):
        new = numbers(list(old.shape), index)
        weights[key] = (new.abs() + 0.5 if key.endswith("running_var") else new).to(old.dtype)
    model.load_state_dict(weights)
    weights = dict(model.state_dict())
    inputs = [numbers(shape, index) for index, shape in enumerate(shapes)] + WHOLE.get(name, [])
    extract_ir(model, tuple(inputs), strict=False).save(str(folder / f"{name}.json"))
    outputs = model(*inputs)
    values = {
        "inputs": [record(tensor) for tensor in inputs],
        "weights": {key: record(tensor) for key, tensor in weights.items()},
        "outputs": [record(tensor) for tensor in (outputs if isinstance(outputs, tuple) else (outputs,))],
    }
    (folder / f"{name}.values.json").write_text(json.dumps(values) + "\n")


if __name__ == "__main__":
    for each in MODELS:
        make(each, Path(sys.argv[1]))
