"""Packs flags into bits, mixes them by shift and xor, and unpacks them again."""

import torch
from torch import Tensor, nn

from catalogue import entry


@entry("misc", inputs=lambda: (torch.randint(0, 2, (4, 8)).bool(), torch.randint(0, 256, (4,))))
class Bits(nn.Module):
    keys: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("keys", torch.randint(0, 256, (4,)))

    def forward(self, flags: Tensor, words: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        places = torch.arange(8, device=flags.device)
        packed = (flags.long() << places).sum(-1)
        mixed = (packed ^ self.keys) & ~(words >> 1) | (words & 0b1010)
        bits = (mixed.unsqueeze(-1) >> places) & 1
        return mixed, bits.bool() ^ flags, (bits.bool() & ~flags).any(-1)
