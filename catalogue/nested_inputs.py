"""Inputs as a dict that holds dicts and tuples, and a list of feature maps."""

from typing import Any

import torch
from torch import Tensor, nn

from catalogue import entry


def nested() -> tuple[dict[str, Any], list[Tensor]]:
    text = {"ids": torch.randint(0, 30, (2, 5)), "mask": torch.ones(2, 5, dtype=torch.bool)}
    batch = {"text": text, "box": (torch.rand(2, 2), torch.rand(2, 2))}
    return batch, [torch.randn(2, 8, 8, 8), torch.randn(2, 8, 4, 4)]


@entry("multi_io", inputs=nested)
class NestedInputs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(30, 8)
        self.corners = nn.Linear(4, 8)
        self.maps = nn.ModuleList(nn.Conv2d(8, 8, 1) for _ in range(2))

    def forward(self, batch: dict[str, Any], features: list[Tensor]) -> dict[str, Tensor]:
        words = self.words(batch["text"]["ids"]) * batch["text"]["mask"].unsqueeze(-1)
        low, high = batch["box"]
        box = self.corners(torch.cat([low, low + high], dim=-1))
        maps = [conv(x).mean((2, 3)) for conv, x in zip(self.maps, features, strict=True)]
        return {"words": words.mean(1) + box, "maps": torch.stack(maps, 1)}
