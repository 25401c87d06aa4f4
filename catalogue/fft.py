"""Fourier layers: a learned complex filter over frequencies, and token mixing by a 2-d transform."""

import torch
from torch import Tensor, nn

from catalogue import entry


@entry("misc", inputs=lambda: (torch.randn(2, 16, 8),))
class FourierNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.filter = nn.Parameter(torch.randn(9, 8, 2) * 0.5)
        self.layer = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        spectrum = torch.fft.rfft(x, dim=1, norm="ortho") * torch.view_as_complex(self.filter)
        filtered = torch.fft.irfft(spectrum, n=x.size(1), dim=1, norm="ortho")
        mixed = torch.fft.fft2(self.layer(filtered)).real
        return mixed, spectrum.conj() * 1j
