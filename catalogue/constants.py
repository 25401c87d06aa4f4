"""Values that are in no state dict: attribute, literal, index list, non-persistent buffer."""

import torch
from torch import Tensor, nn

from catalogue import entry


@entry("misc", inputs=lambda: (torch.randn(2, 4),))
class Constants(nn.Module):
    offsets: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.scale = torch.tensor([0.5, 1.0, 2.0, -4.0])
        self.order = torch.tensor([3, 1, 0, 2])
        self.register_buffer("offsets", torch.linspace(-1, 1, 4), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        x = self.layer(x) * self.scale + self.offsets
        x = x[:, self.order] + torch.tensor([10.0, 20.0, 30.0, 40.0])
        return x[:, [0, 2]] * torch.tensor(3.0) + 1e-3
