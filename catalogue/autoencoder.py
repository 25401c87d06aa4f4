"""Squeezes a vector through a narrow code and rebuilds it, also returning the error."""

import torch
from torch import Tensor, nn

from catalogue import entry


@entry("generative", inputs=lambda: (torch.rand(4, 32),))
class Autoencoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(32, 16), nn.ELU(), nn.Linear(16, 4))
        self.decoder = nn.Sequential(nn.Linear(4, 16), nn.ELU(), nn.Linear(16, 32), nn.Sigmoid())

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        rebuilt = self.decoder(self.encoder(x))
        return rebuilt, nn.functional.mse_loss(rebuilt, x)
