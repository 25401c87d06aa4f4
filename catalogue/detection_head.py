"""One head over several scales of a feature pyramid, giving lists of scores and of decoded boxes."""

import torch
from torch import Tensor, nn

from catalogue import entry

STRIDES = (8, 16, 32)


def pyramid() -> tuple[list[Tensor]]:
    return ([torch.randn(1, 16, 64 // stride, 64 // stride) for stride in STRIDES],)


def centres(x: Tensor, stride: int) -> Tensor:
    """The image coordinates of each cell of a feature map, (2, height, width)."""
    rows = torch.arange(x.size(2), device=x.device, dtype=x.dtype)
    columns = torch.arange(x.size(3), device=x.device, dtype=x.dtype)
    y, x = torch.meshgrid(rows, columns, indexing="ij")
    return (torch.stack([x, y]) + 0.5) * stride


@entry("detection", inputs=pyramid)
class DetectionHead(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tower = nn.Sequential(nn.Conv2d(16, 16, 3, padding=1), nn.GroupNorm(4, 16), nn.ReLU())
        self.scores = nn.Conv2d(16, 3, 1)
        self.sides = nn.Conv2d(16, 4, 1)
        self.scales = nn.Parameter(torch.ones(len(STRIDES)))

    def forward(self, features: list[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        scores, boxes = [], []
        for i, (x, stride) in enumerate(zip(features, STRIDES, strict=True)):
            hidden = self.tower(x)
            scores.append(torch.sigmoid(self.scores(hidden)).flatten(2).transpose(1, 2))
            low, high = (torch.exp(self.scales[i] * self.sides(hidden)) * stride).split(2, dim=1)
            middle = centres(x, stride)
            boxes.append(torch.cat([middle - low, middle + high], dim=1).flatten(2).transpose(1, 2))
        return scores, boxes
