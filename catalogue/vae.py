"""A variational autoencoder: samples its code in training, takes the mean in eval."""

import torch
from torch import Tensor, nn

from catalogue import entry


@entry("generative", inputs=lambda: (torch.rand(2, 1, 16, 16),))
class VAE(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Conv2d(1, 8, 4, 2, 1), nn.LeakyReLU(0.2), nn.Flatten())
        self.mean = nn.Linear(512, 8)
        self.log_variance = nn.Linear(512, 8)
        self.decode = nn.Linear(8, 512)
        self.decoder = nn.Sequential(nn.LeakyReLU(0.2), nn.Unflatten(1, (8, 8, 8)), nn.ConvTranspose2d(8, 1, 4, 2, 1))

    def sample(self, mean: Tensor, log_variance: Tensor) -> Tensor:
        if not self.training:
            return mean
        return mean + torch.randn_like(mean) * torch.exp(0.5 * log_variance)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        hidden = self.encoder(x)
        mean, log_variance = self.mean(hidden), self.log_variance(hidden).clamp(-10, 10)
        code = self.sample(mean, log_variance)
        return torch.sigmoid(self.decoder(self.decode(code))), mean, log_variance
