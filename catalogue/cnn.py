"""Convolutions, batch norms and pooling in front of a linear classifier."""

import torch
from torch import Tensor, nn

from catalogue import entry


def stage(channels: int, out: int) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(channels, out, 3, padding=1), nn.BatchNorm2d(out), nn.ReLU(), nn.MaxPool2d(2))


@entry("cnn", inputs=lambda: (torch.randn(2, 3, 32, 32),))
class CNN(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(stage(3, 16), stage(16, 32))
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.dropout = nn.Dropout(0.5)
        self.classifier = nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.flatten(self.pool(self.features(x)), 1)
        return self.classifier(self.dropout(x))
