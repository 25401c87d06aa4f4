"""One denoising step of a diffusion model: sinusoidal time embedding and a table of noise levels."""

import math

import torch
from torch import Tensor, nn

from catalogue import entry


def time_embedding(time: Tensor, width: int) -> Tensor:
    half = width // 2
    rates = torch.exp(torch.arange(half, device=time.device) * (-math.log(10000.0) / half))
    angles = time[:, None].float() * rates
    return torch.cat([angles.sin(), angles.cos()], dim=-1)


@entry("generative", inputs=lambda: (torch.randn(2, 3, 16, 16), torch.tensor([9, 3])))
class DiffusionStep(nn.Module):
    kept: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.time = nn.Sequential(nn.Linear(16, 16), nn.SiLU(), nn.Linear(16, 16))
        self.first = nn.Conv2d(3, 16, 3, padding=1)
        self.norm = nn.GroupNorm(4, 16)
        self.last = nn.Conv2d(16, 3, 3, padding=1)
        self.register_buffer("kept", torch.cumprod(1 - torch.linspace(0.01, 0.2, 10), dim=0))

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        hidden = self.first(x) + self.time(time_embedding(time, 16))[:, :, None, None]
        noise = self.last(nn.functional.silu(self.norm(hidden)))
        kept = self.kept[time].view(-1, 1, 1, 1)
        return (x - (1 - kept).sqrt() * noise) / kept.sqrt()
