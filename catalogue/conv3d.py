"""A video classifier with 3-d convolutions and pooling."""

import torch
from torch import Tensor, nn

from catalogue import entry


@entry("cnn", inputs=lambda: (torch.randn(1, 3, 8, 16, 16),))
class VideoNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.spatial = nn.Conv3d(3, 8, (1, 3, 3), stride=(1, 2, 2), padding=(0, 1, 1))
        self.temporal = nn.Conv3d(8, 8, (3, 1, 1), padding=(1, 0, 0), groups=4)
        self.norm = nn.BatchNorm3d(8)
        self.pool = nn.MaxPool3d(2)
        self.head = nn.Linear(8, 5)

    def forward(self, video: Tensor) -> Tensor:
        x = self.pool(torch.relu(self.norm(self.temporal(self.spatial(video)))))
        return self.head(nn.functional.adaptive_avg_pool3d(x, 1).flatten(1))
