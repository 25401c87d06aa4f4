"""Pieces that depend on modes around the model: default dtype and device, autocast, gradients, determinism, seeds."""

# mypy: ignore-errors

from __future__ import annotations

import torch
from torch import nn

from tests.state_models.parameters import Weighted
from tests.state_models.piece import SIZE, piece

AMBIENT, RANDOM = "ambient modes", "random numbers"


@piece(AMBIENT)
class MakesDefaultDtype(nn.Module):
    def forward(self, x):
        return x + torch.ones(SIZE).cumsum(0) / 3


@piece(AMBIENT)
class AsksForDefaultDtype(nn.Module):
    def forward(self, x):
        return x * 2 if torch.get_default_dtype() == torch.float32 else x + 3


@piece(AMBIENT)
class AsksForGradMode(nn.Module):
    def forward(self, x):
        return x * 2 if torch.is_grad_enabled() else x + 3


@piece(AMBIENT)
class AsksForInferenceMode(nn.Module):
    def forward(self, x):
        return x * 2 if torch.is_inference_mode_enabled() else x + 3


@piece(AMBIENT)
class AsksForAutocast(nn.Module):
    def forward(self, x):
        return x * 2 if torch.is_autocast_enabled("cpu") else x + 3


@piece(AMBIENT)
class AsksForDeterminism(nn.Module):
    def forward(self, x):
        return x * 2 if torch.are_deterministic_algorithms_enabled() else x + 3


@piece(AMBIENT)
class Multiplies(Weighted):
    def forward(self, x):
        return x @ x.softmax(-1) * self.w


@piece(AMBIENT)
class OwnGradRegion(Weighted):
    def forward(self, x):
        with torch.enable_grad():
            y = x * self.w
        with torch.no_grad():
            z = x * self.w
        return y * 2 if y.requires_grad and not z.requires_grad else y + 3


@piece(AMBIENT)
class OwnInferenceRegion(Weighted):
    def forward(self, x):
        with torch.inference_mode():
            y = (x * self.w).clone()
        return x + y


@piece(AMBIENT)
class OwnAutocastRegion(Weighted):
    def forward(self, x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return (x @ x).float() + self.w


@piece(AMBIENT)
class TakesGradients(Weighted):
    def forward(self, x):
        with torch.enable_grad():
            y = x.detach().requires_grad_()
            return torch.autograd.grad((y * self.w).pow(2).sum(), y)[0]


@piece(AMBIENT)
class ChangesDefaultDtype(nn.Module):
    def forward(self, x):
        before = torch.get_default_dtype()
        torch.set_default_dtype(torch.float64)
        try:
            return x + torch.ones(SIZE).cumsum(0).float() / 3
        finally:
            torch.set_default_dtype(before)


@piece(RANDOM)
class Seeds(nn.Module):
    def forward(self, x):
        torch.manual_seed(7)
        return x + torch.rand(SIZE)


@piece(RANDOM)
class OwnGenerator(nn.Module):
    def __init__(self):
        super().__init__()
        self.draw = torch.Generator(device="cpu").manual_seed(5)

    def forward(self, x):
        return x + torch.rand(SIZE, generator=self.draw)
