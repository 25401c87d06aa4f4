"""One branch sees both images; the answer is the similarity of its two outputs."""

import torch
from torch import Tensor, nn

from catalogue import entry


@entry("shared", inputs=lambda: (torch.randn(2, 1, 16, 16), torch.randn(2, 1, 16, 16)))
class Siamese(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.branch = nn.Sequential(
            nn.Conv2d(1, 8, 3, stride=2), nn.PReLU(8), nn.Conv2d(8, 8, 3, stride=2), nn.Flatten(), nn.Linear(72, 16)
        )

    def forward(self, left: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
        a, b = self.branch(left), self.branch(right)
        return nn.functional.cosine_similarity(a, b), nn.functional.pairwise_distance(a, b)
